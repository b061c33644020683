"""Trains region heads of one product alone, on hidden states of a model that stays as it is. Cheap: no image is looked at twice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from .config import MoondreamConfig
from .losses import COORD_SIGMA, SIZE_SIGMA, soft_bin_loss
from .reference_model import Weights, layer_norm

STEPS = 600
LEARNING_RATE = 3e-3
SAMPLES = 1024  # of a step


def linear_head(
    inputs: torch.Tensor,
    bins: torch.Tensor,
    start: tuple[torch.Tensor, torch.Tensor],
    sigma: float,
    name: str,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """inputs [N, D], bins [N]; weight [count, D] and bias [count] from `start` on.

    Trained on nine tenths, with a learning rate that falls to 0, and tried on the others.
    """
    head = [t.clone().requires_grad_() for t in start]
    optimizer = torch.optim.Adam(head, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    is_trial = torch.arange(len(bins)) % 10 == 0
    known, aims, ones = inputs[~is_trial], bins[~is_trial], torch.ones(SAMPLES)

    def median_error() -> float:
        found = F.linear(inputs[is_trial], *(t.detach() for t in head)).argmax(dim=-1)
        return float((found - bins[is_trial]).abs().median())

    before = median_error()
    for _ in range(STEPS):
        picked = torch.randint(len(aims), (SAMPLES,), generator=generator)
        loss = soft_bin_loss(F.linear(known[picked], *head), aims[picked], sigma, ones)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"  {name}: {len(aims)} hidden states; median error of others {before:.1f} bins before, {median_error():.1f} after")
    return head[0].detach(), head[1].detach()


def fit_region_heads(
    weights: Weights, config: MoondreamConfig, states: Iterable[tuple[torch.Tensor, dict]], generator: torch.Generator
) -> None:
    """Replaces the heads in `weights`. `states`: last hidden states of suffixes [B, S, D], and their batches."""
    inputs, coord, sizes = [], [], []
    for hidden, batch in states:
        flat, of_coord, of_size = hidden.flatten(0, 1), batch["coord_bins"].flatten(), batch["size_bins"].flatten(0, 1)
        used = (of_coord >= 0) | (of_size[:, 0] >= 0)
        inputs.append(layer_norm(weights, "model.region.ln", flat[used]))
        coord.append(of_coord[used])
        sizes.append(of_size[used])
    inputs, coord, sizes = torch.cat(inputs), torch.cat(coord), torch.cat(sizes)
    widths = config.region.size_out_dim // 2

    def fit(name: str, first: int, count: int, bins: torch.Tensor, sigma: float, what: str) -> None:
        rows = slice(first, first + count)
        start = tuple(weights[f"model.region.{name}_decoder.{part}"][rows] for part in ("weight", "bias"))
        head = linear_head(inputs[bins >= 0], bins[bins >= 0], start, sigma, what, generator)
        for part, fitted in zip(("weight", "bias"), head):
            weights[f"model.region.{name}_decoder.{part}"][rows] = fitted

    fit("coord", 0, config.region.coord_out_dim, coord, COORD_SIGMA, "coordinates")
    fit("size", 0, widths, sizes[:, 0], SIZE_SIGMA, "widths")
    fit("size", widths, widths, sizes[:, 1], SIZE_SIGMA, "heights")
