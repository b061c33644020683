"""Greedy query, caption, point, detect and segment over the reference model, one request at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from tokenizers import Tokenizer

from .config import MoondreamConfig
from .outlines import path_text
from .path_grammar import PathGrammar
from .reasoning import answer_feeds
from .reference_model import Capture, ReferenceModel, TextCache, keep, layer_norm


@dataclass(frozen=True)
class Limits:
    max_new_tokens: int = 768
    max_objects: int = 50


@dataclass
class Grounding:
    """Points that characters start to end of a reasoning's text are about."""

    start: int
    end: int
    points: list[tuple[float, float]]


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
    text: str | None = None  # of a segment: its path, in units of its box
    points: list[tuple[float, float]] | None = None
    boxes: list[tuple[float, float, float, float]] | None = None
    reasoning: str | None = None
    grounding: list[Grounding] = field(default_factory=list)


def margin_of(logits: torch.Tensor) -> float:
    best, second = logits.topk(2).values.tolist()
    return best - second


def prompt_ids(
    skill: str, argument: str, tokenizer: Tokenizer, config: MoondreamConfig, reasons: bool = False
) -> list[int]:
    """Token ids after the image. `argument`: the question, the object, or the caption's length.

    Objects of detect and point are encoded with a leading space, those of segment and questions without, but for older
    models.
    """
    template = config.tokenizer.templates[skill]
    if skill == "caption":
        return list(template[argument])
    special = config.tokenizer
    spaced = {"query": special.question_leading_space, "segment": False}.get(skill, special.object_leading_space)
    text = " " + argument if spaced else argument
    return template["prefix"] + tokenizer.encode(text).ids + template["reasoning" if reasons else "suffix"]


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


class Decoding:
    """A sequence that grows token by token."""

    def __init__(self, model: ReferenceModel, cache: TextCache, ids: list[int], capture: Capture) -> None:
        self.model, self.special = model, model.config.tokenizer
        self.out = Generation(ids)
        self.cache, self.hidden = _prefill(model, cache, ids, capture)

    def feed(self, embedding: torch.Tensor) -> None:
        self.hidden = self.model.decode(embedding[None], self.cache, prefix=0)[-1]

    def choose(self, allowed: list[int] | None = None, denied: Sequence[int] = ()) -> int:
        """The token of the largest logit."""
        logits = self.model.logits(self.hidden)
        for token in denied:
            if token >= 0:
                logits[token] = float("-inf")
        if allowed is not None:
            kept = torch.full_like(logits, float("-inf"))
            kept[allowed] = logits[allowed]
            logits = kept
        self.out.margins.append(margin_of(logits))
        return int(logits.argmax())

    def add(self, token: int) -> None:
        self.out.token_ids.append(token)
        self.feed(self.model.embed([token])[0])

    def _bin(self, logits: torch.Tensor) -> int:
        self.out.bin_margins.append(margin_of(logits))
        self.out.bins.append(int(logits.argmax()))
        return self.out.bins[-1]

    def add_coord(self) -> float:
        """A region value is read from the hidden state before the token, its encoding is the token's embedding."""
        model = self.model
        value = model.coord_value(self._bin(model.coord_logits(self.hidden)))
        self.out.token_ids.append(self.special.coord_id)
        self.feed(model.encode_coord(torch.tensor([value], dtype=model.dtype, device=model.device)))
        return value

    def add_size(self) -> tuple[float, float]:
        model = self.model
        w, h = (model.size_value(self._bin(logits)) for logits in model.size_logits(self.hidden))
        self.out.token_ids.append(self.special.size_id)
        self.feed(model.encode_size(torch.tensor([w, h], dtype=model.dtype, device=model.device)))
        return w, h

    def add_box(self, x: float, y: float) -> tuple[float, float, float, float]:
        w, h = self.add_size()
        return (x - w / 2, y - h / 2, x + w / 2, y + h / 2)


def _answer(decoding: Decoding, tokenizer: Tokenizer, max_tokens: int) -> None:
    """Greedy text. The answer separator is never emitted; eos ends and is not emitted."""
    out, special = decoding.out, decoding.special
    begin = len(out.token_ids)
    while True:
        token = decoding.choose(denied=[special.answer_id])
        if token == special.eos_id:
            break
        decoding.add(token)
        if len(out.token_ids) - begin == max_tokens:
            out.finish_reason = "length"
            break
    out.text = tokenizer.decode(out.token_ids[begin:])


def generate_text(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    ids: list[int],
    limits: Limits,
    capture: Capture = None,
) -> Generation:
    decoding = Decoding(model, cache, ids, capture)
    _answer(decoding, tokenizer, limits.max_new_tokens)
    return decoding.out


def _reason(decoding: Decoding, tokenizer: Tokenizer, max_tokens: int) -> bool:
    """Text with points in it, up to the answer separator, which is fed and belongs to the answer's tokens. False: eos came first,
    and no answer follows, as in reasoning.py.

    A part of the text begins at the token that starts points and at the one that ends them; the points in it are its own.
    """
    out, special = decoding.out, decoding.special
    ids: list[int] = []
    coordinates: list[float] = []
    begin, out.reasoning = 0, ""

    def end_part() -> None:
        nonlocal begin, coordinates
        out.reasoning = tokenizer.decode(ids)
        if len(coordinates) > 1:
            points = list(zip(coordinates[::2], coordinates[1::2]))
            out.grounding.append(Grounding(begin, len(out.reasoning), points))
        begin, coordinates = len(out.reasoning), []

    denied = special.templates["query"].get("reasoning_denied", [])
    for _ in range(max_tokens):
        token = decoding.choose(denied=denied)
        if token in (special.start_ground_points_id, special.end_ground_id):
            end_part()
        if token in (special.answer_id, special.eos_id):
            break
        if token == special.coord_id:
            coordinates.append(decoding.add_coord())
            continue
        ids.append(token)
        decoding.add(token)
    end_part()
    if token == special.eos_id:
        return False
    for _ in range(answer_feeds(decoding.model)):
        decoding.add(special.answer_id)
    return True


def generate_reasoned(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    ids: list[int],
    limits: Limits,
    capture: Capture = None,
) -> Generation:
    """Reasoning, then an answer, greedy; of at most `max_new_tokens` each."""
    decoding = Decoding(model, cache, ids, capture)
    if _reason(decoding, tokenizer, limits.max_new_tokens):
        _answer(decoding, tokenizer, limits.max_new_tokens)
    return decoding.out


def generate_segment(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    ids: list[int],
    limits: Limits,
    capture: Capture = None,
) -> Generation:
    """A box, then greedy path tokens among those that the grammar allows."""
    decoding = Decoding(model, cache, ids, capture)
    out, special = decoding.out, decoding.special
    x, y = decoding.add_coord(), decoding.add_coord()
    out.points, out.boxes = [(x, y)], [decoding.add_box(x, y)]
    grammar = PathGrammar(tokenizer, special.eos_id)
    begin = len(out.token_ids)
    while True:
        token = decoding.choose(grammar.allowed())
        if token == special.eos_id:
            break
        decoding.add(token)
        grammar.advance(token)
        if len(out.token_ids) == limits.max_new_tokens:
            out.finish_reason = "length"
            break
    out.text = path_text([tokenizer.decode([token]).strip() for token in out.token_ids[begin:]])
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
    """
    decoding = Decoding(model, cache, ids, capture)
    out, special = decoding.out, decoding.special
    out.points, out.boxes = [], []
    while True:
        if len(out.points) == limits.max_objects:
            out.finish_reason = "length"
            break
        logits = model.logits(decoding.hidden)
        others = logits.clone()
        others[special.eos_id] = float("-inf")
        begins = others.max() if special.any_token_is_coord else logits[special.coord_id]
        gap = float(begins - logits[special.eos_id])
        out.margins.append(abs(gap))
        if gap <= 0:
            break
        x, y = decoding.add_coord(), decoding.add_coord()
        out.points.append((x, y))
        if with_size:
            out.boxes.append(decoding.add_box(x, y))
    return out


def run_skill(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    cache: TextCache,
    skill: str,
    argument: str,
    reasons: bool = False,
    *,
    capture: Capture = None,
    limits: Limits = Limits(),
) -> Generation:
    """`cache` comes from encode_image and is left as it is."""
    ids = prompt_ids(skill, argument, tokenizer, model.config, reasons)
    if skill in ("point", "detect"):
        return generate_regions(model, cache, ids, skill == "detect", limits, capture)
    generate = generate_segment if skill == "segment" else generate_reasoned if reasons else generate_text
    return generate(model, tokenizer, cache, ids, limits, capture)
