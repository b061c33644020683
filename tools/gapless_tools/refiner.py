"""The network that refines segments, in plain PyTorch: the oracle of src/refine.

Weights are a flat dictionary under the published names. Pictures are [channels, side, side], tokens [count, channels].
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .reference_model import Capture, Weights, keep, layer_norm, linear

MASKS = 4
HEADS, FINE_HEADS = 8, 4
FUSION_GROUPS = 32
MASK_SHARES = (16, 8, 4, 1)  # of the width, by layer of the mask encoder
MASK_GROUPS = (1, 8, 16, 32)


def shapes_of(encoder_dim: int, dim: int, grid: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of a file."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(name: str, *weight: int, out: int | None = None) -> None:
        shapes[name + ".weight"] = weight
        shapes[name + ".bias"] = (weight[0] if out is None else out,)

    def add_attention(name: str, width: int) -> None:
        shapes[name + ".in_proj_weight"] = (3 * width, width)
        shapes[name + ".in_proj_bias"] = (3 * width,)
        add(name + ".out_proj", width, width)

    add("image_proj", dim, encoder_dim, 1, 1)
    shapes["image_pe"] = (1, dim, grid, grid)
    add("hq_fusion.early_proj.0", dim, encoder_dim)
    add("hq_fusion.early_proj.1", dim)
    add("hq_fusion.fusion.0", dim, 2 * dim, 1, 1)
    add("hq_fusion.fusion.1", dim)
    add("hq_fusion.fusion.3", dim, dim, 3, 3)
    add("hq_fusion.fusion.4", dim)
    width = 1
    for i, share in enumerate(MASK_SHARES, 1):
        add(f"mask_encoder.conv{i}.0", dim // share, width, 3, 3)
        add(f"mask_encoder.conv{i}.1", dim // share)
        width = dim // share
    shapes |= {"mask_tokens": (MASKS, dim), "iou_token": (1, dim), "output_pe": (MASKS + 1, dim)}
    for i in range(2):
        name = f"transformer_blocks.{i}"
        for part in ("output_self_attn", "cross_attn_token_to_image", "cross_attn_image_to_token"):
            add_attention(f"{name}.{part}", dim)
        for norm in range(1, 5):
            add(f"{name}.norm{norm}", dim)
        add(name + ".mlp.0", 8 * dim, dim)
        add(name + ".mlp.2", dim, 8 * dim)
    add_attention("final_token_to_image", dim)
    add("final_norm", dim)
    for i in range(3):
        wide, narrow = dim >> i, dim >> (i + 1)
        add(f"upsample.{6 * i}", wide, narrow, 2, 2, out=narrow)
        add(f"upsample.{6 * i + 1}.norm", narrow)
        add(f"upsample.{6 * i + 3}", narrow, narrow, 3, 3)
        add(f"upsample.{6 * i + 4}.norm", narrow)
    fine = dim // 8
    add("final_q_proj", fine, dim)
    add_attention("final_attn_up", fine)
    add("final_norm_up", fine)
    for mask in range(MASKS):
        for layer in (0, 2, 4):
            add(f"mask_mlps.{mask}.{layer}", fine, fine)
    add("iou_head.0", dim, dim)
    add("iou_head.2", dim, dim)
    add("iou_head.4", MASKS, dim)
    return shapes


def random_weights(encoder_dim: int, dim: int, grid: int, seed: int) -> Weights:
    """Of about unit variance after every product; norms and positions that do something."""
    generator = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, shape in shapes_of(encoder_dim, dim, grid).items():
        value = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            value = value * 0.1 + (1 if name.endswith("weight") else 0)
        elif name.endswith("weight"):
            is_transposed = name.startswith("upsample") and shape[-1] == 2
            inputs = shape[0] if is_transposed else math.prod(shape[1:])
            value = value / inputs**0.5
        weights[name] = value.bfloat16().float()
    return weights


def channel_norm(w: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """LayerNorm over the channels of each pixel."""
    return layer_norm(w, name, x.movedim(0, -1)).movedim(-1, 0)


def convolve(w: Weights, name: str, x: torch.Tensor, **options: int) -> torch.Tensor:
    return F.conv2d(x[None], w[name + ".weight"], w[name + ".bias"], **options)[0]


def group_norm(w: Weights, name: str, groups: int, x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x[None], groups, w[name + ".weight"], w[name + ".bias"])[0]


def resize(x: torch.Tensor, side: int) -> torch.Tensor:
    return F.interpolate(x[None], size=(side, side), mode="bilinear", align_corners=False)[0]


def attend(w: Weights, name: str, heads: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights, biases = w[name + ".in_proj_weight"].chunk(3), w[name + ".in_proj_bias"].chunk(3)
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (heads, -1)).transpose(0, 1)
        for x, weight, bias in zip((q, k, v), weights, biases, strict=True)
    )
    shares = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1)
    return linear(w, name + ".out_proj", (shares @ v).transpose(0, 1).flatten(1))


def picture_features(w: Weights, early: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
    """early, final: [patches, encoder_dim] -> [dim, grid, grid]"""
    grid = w["image_pe"].shape[-1]
    of_final = F.linear(final, w["image_proj.weight"].flatten(1), w["image_proj.bias"])
    of_early = F.gelu(layer_norm(w, "hq_fusion.early_proj.1", linear(w, "hq_fusion.early_proj.0", early)))
    x = torch.cat([of_early, of_final], dim=-1).T.unflatten(-1, (grid, grid))
    x = F.gelu(group_norm(w, "hq_fusion.fusion.1", FUSION_GROUPS, convolve(w, "hq_fusion.fusion.0", x)))
    return F.gelu(group_norm(w, "hq_fusion.fusion.4", FUSION_GROUPS, convolve(w, "hq_fusion.fusion.3", x, padding=1)))


def encode_mask(w: Weights, mask: torch.Tensor) -> torch.Tensor:
    x, dim = mask[None], w["mask_tokens"].shape[1]
    for i, (share, groups) in enumerate(zip(MASK_SHARES, MASK_GROUPS, strict=True), 1):
        x = convolve(w, f"mask_encoder.conv{i}.0", x, stride=2, padding=1)
        x = F.gelu(group_norm(w, f"mask_encoder.conv{i}.1", min(groups, dim // share), x))
    return resize(x, w["image_pe"].shape[-1])


def refine(w: Weights, features: torch.Tensor, mask: torch.Tensor, capture: Capture = None) -> torch.Tensor:
    """features [dim, grid, grid], mask [side, side] from 0 to 1 -> the best candidate's logits, as large as the mask."""
    grid = features.shape[-1]
    mask_features = encode_mask(w, mask)
    keep(capture, "mask", mask_features.flatten(1).T)
    image = (features + mask_features).flatten(1).T
    places = w["image_pe"][0].flatten(1).T
    tokens, token_places = torch.cat([w["mask_tokens"], w["iou_token"]]), w["output_pe"]
    for i in range(2):
        name = f"transformer_blocks.{i}"
        at = tokens + token_places
        tokens = layer_norm(w, name + ".norm1", tokens + attend(w, name + ".output_self_attn", HEADS, at, at, tokens))
        seen = attend(w, name + ".cross_attn_token_to_image", HEADS, tokens + token_places, image + places, image)
        tokens = layer_norm(w, name + ".norm2", tokens + seen)
        inner = F.gelu(linear(w, name + ".mlp.0", tokens))
        tokens = layer_norm(w, name + ".norm3", tokens + linear(w, name + ".mlp.2", inner))
        told = attend(w, name + ".cross_attn_image_to_token", HEADS, image + places, tokens + token_places, tokens)
        image = layer_norm(w, name + ".norm4", image + told)
        keep(capture, f"block.{i}.tokens", tokens)
        keep(capture, f"block.{i}.image", image)
    seen = attend(w, "final_token_to_image", HEADS, tokens + token_places, image + places, image)
    tokens = layer_norm(w, "final_norm", tokens + seen)
    keep(capture, "tokens", tokens)
    fine = image.T.unflatten(-1, (grid, grid))
    for i in range(0, 18, 6):
        fine = F.conv_transpose2d(fine[None], w[f"upsample.{i}.weight"], w[f"upsample.{i}.bias"], stride=2)[0]
        fine = F.gelu(channel_norm(w, f"upsample.{i + 1}.norm", fine))
        fine = F.gelu(channel_norm(w, f"upsample.{i + 4}.norm", convolve(w, f"upsample.{i + 3}", fine, padding=1)))
    pixels = fine.flatten(1).T
    keep(capture, "fine", pixels)
    asked = linear(w, "final_q_proj", tokens[:MASKS])
    asked = asked + attend(w, "final_attn_up", FINE_HEADS, layer_norm(w, "final_norm_up", asked), pixels, pixels)
    candidates = []
    for i in range(MASKS):
        x = asked[i]
        for layer in (0, 2):
            x = F.gelu(linear(w, f"mask_mlps.{i}.{layer}", x))
        candidates.append(pixels @ linear(w, f"mask_mlps.{i}.4", x))
    keep(capture, "candidates", torch.stack(candidates, dim=-1))
    quality = F.gelu(linear(w, "iou_head.2", F.gelu(linear(w, "iou_head.0", tokens[MASKS]))))
    quality = linear(w, "iou_head.4", quality)
    keep(capture, "quality", quality[None])
    best = candidates[int(quality.argmax())]
    return resize(best.reshape(1, *fine.shape[1:]), mask.shape[-1])[0]


def refine_rounds(w: Weights, features: torch.Tensor, mask: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The mask fed back: shares from 0 to 1."""
    for _ in range(rounds):
        mask = torch.sigmoid(refine(w, features, mask))
    return mask
