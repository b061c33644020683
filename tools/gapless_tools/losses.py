"""Training losses: next token, coordinate and size bins with soft targets, and the dense per-patch targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from .packing import IGNORE
from .reference_model import LAYER_NORM_EPS, Weights, layer_norm, linear, mlp
from .vocabulary import COLOURS, DENSE_KINDS, DENSE_TEXTS

COORD_SIGMA = 1.5  # bins
SIZE_SIGMA = 3.0  # bins of a tenth of a percent of ten octaves: 3 bins are 2 %
NUMBER_SIGMA = 8.0  # of a path's numbers, in 960ths of its box
TURN_UNIT = 0.22  # radians: most kinds are turned by no more
OUTLINE_CLASSES = 2 + 1 + len(DENSE_KINDS)  # what an outline's head says: hollow, turn, kind


def soft_bin_loss(logits: torch.Tensor, bins: torch.Tensor, sigma: float, valid: torch.Tensor) -> torch.Tensor:
    """Cross entropy with a Gaussian around `bins`; logits [..., 1024], bins and valid [...]."""
    steps = torch.arange(logits.shape[-1], device=logits.device)
    target = torch.softmax(-0.5 * ((steps - bins[..., None]) / sigma) ** 2, dim=-1)
    loss = -(target * F.log_softmax(logits.float(), dim=-1)).sum(dim=-1)
    return (loss * valid).sum() / valid.sum().clamp(min=1)


def region_logits(weights: Weights, name: str, hidden: torch.Tensor) -> torch.Tensor:
    """Through whichever head the weights have: of one product behind a norm, or of two."""
    decoder = f"model.region.{name}_decoder"
    if decoder + ".weight" not in weights:
        return mlp(weights, decoder, hidden)
    return linear(weights, decoder, layer_norm(weights, "model.region.ln", hidden))


def region_losses(weights: Weights, hidden: torch.Tensor, batch: dict[str, torch.Tensor], slots: int) -> dict:
    """Reads up to `slots` coordinate and `slots` size positions of the flattened suffix (fixed shapes)."""
    flat = hidden.flatten(0, 1)
    out = {}
    for name, bins in (("coord", batch["coord_bins"].flatten()), ("size", batch["size_bins"].flatten(0, 1))):
        has = (bins >= 0) if bins.dim() == 1 else (bins[:, 0] >= 0)
        picked = torch.topk(
            has.float() + torch.rand_like(has, dtype=torch.float32) * 0.5, min(slots, has.numel())
        ).indices
        valid = has[picked].float()
        logits = region_logits(weights, name, flat[picked])
        if name == "size":
            logits, valid = logits.view(len(picked), 2, -1), valid[:, None].expand(-1, 2)
        out[name] = soft_bin_loss(logits, bins[picked], COORD_SIGMA if name == "coord" else SIZE_SIGMA, valid)
    return out


class Deciding(NamedTuple):
    """Tokens behind which one token decides much. A tokenizer that has no path tokens has -1 there."""

    opening: int  # of an outline: the two numbers behind it say how the shape is turned, the others follow from them
    close: int  # of an outline: a second one behind it is a hole


def token_losses(
    weights: Weights,
    hidden: torch.Tensor,
    batch: dict[str, torch.Tensor],
    number_of_token: torch.Tensor,
    deciding: Deciding,
) -> dict[str, torch.Tensor]:
    """Of the next token, and apart from it of a path's numbers, whose neighbours are nearly as right.

    `number_of_token` [vocabulary]: what a token says as a path's number, NaN where it is none. What follows a token of `deciding`
    is seldom and decides much, so that each kind has a mean of its own besides.
    """
    asked = (batch["targets"] != IGNORE).flatten().nonzero().flatten()
    norm = layer_norm(weights, "model.text.post_ln", hidden.flatten(0, 1)[asked])
    logits = linear(weights, "model.text.lm_head", norm).float()
    targets, numbers = batch["targets"].flatten()[asked], batch["numbers"].flatten()[asked]
    is_number = numbers >= 0
    each = F.cross_entropy(logits, targets, reduction="none")
    count = max(1, len(asked))
    if not bool(is_number.any()):
        return {"token": each.sum() / count}
    tokens = batch["tokens"].flatten()
    closed = (tokens[asked] == deciding.close).float()
    opened = tokens == deciding.opening
    opened = (opened | opened.roll(1))[asked][is_number].float()
    distance = (number_of_token - numbers[is_number][:, None]) / NUMBER_SIGMA
    aim = torch.softmax((-0.5 * distance**2).nan_to_num(nan=float("-inf")), dim=-1)
    path = -(aim * F.log_softmax(logits[is_number], dim=-1)).sum(dim=-1)
    hole = (each * closed).sum() / closed.sum().clamp(min=1)
    begin = (path * opened).sum() / opened.sum().clamp(min=1)
    return {"token": (each * ~is_number).sum() / count, "path": path.sum() / count, "hole": hole, "begin": begin}


def outline_losses(head: Weights, states: torch.Tensor, outlined: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """Whether a block's states [B, S, D] say what the shape there is: `head` reads them, `outlined` [B, S, 3] is the truth.

    The losses of the path alone do not make its tokens look at the picture: what is drawn there shows in one number of ten.
    """
    kind, hollow, turn = outlined.flatten(0, 1).unbind(-1)
    asked = kind.nonzero().flatten()
    kind = kind[asked].long()
    seen = F.layer_norm(states.flatten(0, 1)[asked].float(), states.shape[-1:])
    said = F.linear(seen, head["weight"], head["bias"]).float()
    turned = ((kind != 1 + DENSE_KINDS.index("circle")) & (kind != 1 + DENSE_KINDS.index("bar"))).float()
    distance = F.smooth_l1_loss(said[:, 1], turn[asked] / TURN_UNIT, beta=0.5, reduction="none")
    count = max(1, len(asked))
    return {
        f"{name}_hollow": F.binary_cross_entropy_with_logits(said[:, 0], hollow[asked], reduction="sum") / count,
        f"{name}_turn": (distance * turned).sum() / turned.sum().clamp(min=1),
        f"{name}_kind": F.cross_entropy(said[:, 2:], kind, reduction="sum") / count,
    }


def dense_losses(prediction: torch.Tensor, batch: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """prediction [B, 729, ...]; patches without an item count a tenth, so that items are not drowned."""
    kinds, colours, texts = 1 + len(DENSE_KINDS), 1 + len(COLOURS), 1 + len(DENSE_TEXTS)
    kind, colour, text, sides = prediction.float().flatten(0, 1).split([kinds, colours, texts, 4], dim=-1)
    inside = batch["dense_kind"].flatten() > 0
    weight = torch.where(inside, 1.0, 0.1)
    count = inside.float().sum().clamp(min=1)
    printed = (batch["dense_text"].flatten() > 0) & inside

    def classes(logits: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (F.cross_entropy(logits, target.flatten(), reduction="none") * scale).sum() / scale.sum().clamp(min=1)

    distance = F.smooth_l1_loss(sides, batch["dense_sides"].flatten(0, 1), beta=0.02, reduction="none").sum(dim=-1)
    return {
        f"{name}_kind": classes(kind, batch["dense_kind"], weight),
        f"{name}_colour": classes(colour, batch["dense_colour"], weight),
        f"{name}_text": classes(text, batch["dense_text"], printed.float()),
        f"{name}_sides": 2.0 * (distance * inside).sum() / count,
    }
