"""Training losses: next token, coordinate and size bins with soft targets, and the dense per-patch targets."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .packing import IGNORE
from .reference_model import LAYER_NORM_EPS, Weights, layer_norm, linear, mlp
from .vocabulary import COLOURS, DENSE_KINDS, DENSE_TEXTS

COORD_SIGMA = 2.0  # bins
SIZE_SIGMA = 5.0  # bins of a tenth of a percent of ten octaves: 5 bins are 3.4 %
NUMBER_SIGMA = 8.0  # of a path's numbers, in 960ths of its box


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


def token_losses(
    weights: Weights, hidden: torch.Tensor, batch: dict[str, torch.Tensor], number_of_token: torch.Tensor, close: int | None
) -> dict[str, torch.Tensor]:
    """Of the next token, and apart from it of a path's numbers, whose neighbours are nearly as right.

    `number_of_token` [vocabulary]: what a token says as a path's number, NaN where it is none. What follows `close`, the token
    that closes an outline, says whether there is a hole: one token in thirty, so its loss has a mean of its own besides.
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
    closed = (batch["tokens"].flatten()[asked] == (-1 if close is None else close)).float()
    distance = (number_of_token - numbers[is_number][:, None]) / NUMBER_SIGMA
    aim = torch.softmax((-0.5 * distance**2).nan_to_num(nan=float("-inf")), dim=-1)
    path = -(aim * F.log_softmax(logits[is_number], dim=-1)).sum()
    hole = (each * closed).sum() / closed.sum().clamp(min=1)
    return {"token": (each * ~is_number).sum() / count, "path": path / count, "hole": hole}


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
