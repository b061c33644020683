"""Greedy query, caption, point and detect over the reference model, one request at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from PIL import Image
from tokenizers import Tokenizer

from .config import MoondreamConfig
from .reference_model import Capture, ReferenceModel, TextCache, keep, layer_norm


@dataclass(frozen=True)
class Limits:
    max_new_tokens: int = 768
    max_objects: int = 50


@dataclass
class Generation:
    """What a skill produced. `token_ids` leaves out the final eos; `bins` holds the region bins in order.

    `margins` are the gaps between the best and the second allowed logit, one per decision (the final eos included;
    a token without a choice, such as y after x, is no decision); `bin_margins` the same per region bin.
    """

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    bins: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    bin_margins: list[float] = field(default_factory=list)
    finish_reason: str = "stop"
    text: str | None = None
    points: list[tuple[float, float]] | None = None
    boxes: list[tuple[float, float, float, float]] | None = None


def margin_of(logits: torch.Tensor) -> float:
    best, second = logits.topk(2).values.tolist()
    return best - second


def prompt_ids(skill: str, argument: str, tokenizer: Tokenizer, config: MoondreamConfig) -> list[int]:
    """Token ids after the image. `argument`: the question, the object, or the caption's length.

    Objects of detect and point are encoded with a leading space and questions without, but for older models.
    """
    template = config.tokenizer.templates[skill]
    if skill == "caption":
        return list(template[argument])
    special = config.tokenizer
    spaced = special.question_leading_space if skill == "query" else special.object_leading_space
    text = " " + argument if spaced else argument
    return template["prefix"] + tokenizer.encode(text).ids + template["suffix"]


def encode_images(model: ReferenceModel, images: list[Image.Image], capture: Capture = None) -> TextCache:
    """The cache over BOS and the images; over BOS alone without any.

    The positions of an image see each other and what is before them; BOS belongs to the first one's: 730 positions,
    then 729 for each further image. `capture` gets the stages of the last image.
    """
    cache = TextCache(model.config.text.n_layers)
    x = model.embed([model.config.tokenizer.bos_id])
    for image in images:
        x = torch.cat([x, model.image_embeddings(image, capture)])
        model.decode(x, cache, prefix=cache.length + x.shape[0], capture=capture)
        x = x[:0]
    if x.shape[0] > 0:
        model.decode(x, cache, prefix=x.shape[0], capture=capture)
    return cache


def encode_image(model: ReferenceModel, image: Image.Image | None, capture: Capture = None) -> TextCache:
    """The same for one image, or none."""
    return encode_images(model, [] if image is None else [image], capture)


def _prefill(
    model: ReferenceModel, cache: TextCache, ids: list[int], capture: Capture
) -> tuple[TextCache, torch.Tensor]:
    cache = cache.copy()
    blocks: Capture = {} if capture is not None else None
    hidden = model.decode(model.embed(ids), cache, prefix=0, capture=blocks)[-1]
    for name, tensor in (blocks or {}).items():
        keep(capture, "prompt." + name, tensor)
    keep(capture, "prompt.last_hidden", hidden)
    keep(capture, "prompt.final_hidden", layer_norm(model.weights, "model.text.post_ln", hidden))
    keep(capture, "prompt.logits", model.logits(hidden))
    keep(capture, "prompt.coord_logits", model.coord_logits(hidden))
    keep(capture, "prompt.size_logits", model.size_logits(hidden))
    return cache, hidden


def generate_text(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    ids: list[int],
    limits: Limits,
    capture: Capture = None,
) -> Generation:
    """Greedy text. The answer separator is never emitted; eos ends and is not emitted."""
    special = model.config.tokenizer
    out = Generation(ids)
    cache, hidden = _prefill(model, cache, ids, capture)
    while True:
        logits = model.logits(hidden)
        if special.answer_id >= 0:
            logits[special.answer_id] = float("-inf")
        token = int(logits.argmax())
        out.margins.append(margin_of(logits))
        if token == special.eos_id:
            break
        out.token_ids.append(token)
        if len(out.token_ids) == limits.max_new_tokens:
            out.finish_reason = "length"
            break
        hidden = model.decode(model.embed([token]), cache, prefix=0)[-1]
    out.text = tokenizer.decode(out.token_ids)
    return out


def generate_regions(
    model: ReferenceModel,
    cache: TextCache,
    ids: list[int],
    with_size: bool,
    limits: Limits,
    capture: Capture = None,
) -> Generation:
    """Greedy points (with_size false) or boxes: {coord, eos} may start an object, then y, then for boxes the size.

    Models without a token for coordinates: any token but eos starts an object.

    A region value is read from the hidden state before the token, its encoding is the token's embedding.
    """
    special = model.config.tokenizer
    out = Generation(ids, points=[], boxes=[])
    cache, hidden = _prefill(model, cache, ids, capture)

    def feed(embedding: torch.Tensor) -> torch.Tensor:
        return model.decode(embedding[None], cache, prefix=0)[-1]

    def coordinate(hidden: torch.Tensor) -> tuple[float, torch.Tensor]:
        logits = model.coord_logits(hidden)
        index = int(logits.argmax())
        out.bin_margins.append(margin_of(logits))
        out.token_ids.append(special.coord_id)
        out.bins.append(index)
        value = torch.tensor([model.coord_value(index)], dtype=model.dtype, device=model.device)
        return model.coord_value(index), feed(model.encode_coord(value))

    while True:
        if len(out.points) == limits.max_objects:
            out.finish_reason = "length"
            break
        logits = model.logits(hidden)
        others = logits.clone()
        others[special.eos_id] = float("-inf")
        begins = others.max() if special.any_token_is_coord else logits[special.coord_id]
        gap = float(begins - logits[special.eos_id])
        out.margins.append(abs(gap))
        if gap <= 0:
            break
        x, hidden = coordinate(hidden)
        y, hidden = coordinate(hidden)
        out.points.append((x, y))
        if with_size:
            logits = model.size_logits(hidden)
            w_bin, h_bin = (int(i) for i in logits.argmax(dim=-1))
            out.bin_margins += [margin_of(logits[0]), margin_of(logits[1])]
            out.token_ids.append(special.size_id)
            out.bins += [w_bin, h_bin]
            w, h = model.size_value(w_bin), model.size_value(h_bin)
            out.boxes.append((x - w / 2, y - h / 2, x + w / 2, y + h / 2))
            hidden = feed(model.encode_size(torch.tensor([w, h], dtype=model.dtype, device=model.device)))
    return out


def run_skill(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    skill: str,
    argument: str,
    capture: Capture = None,
    limits: Limits = Limits(),
) -> Generation:
    """`cache` comes from encode_image and is left as it is."""
    ids = prompt_ids(skill, argument, tokenizer, model.config)
    if skill in ("point", "detect"):
        return generate_regions(model, cache, ids, skill == "detect", limits, capture)
    return generate_text(model, tokenizer, cache, ids, limits, capture)
