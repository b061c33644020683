"""The reference model's maths, batched and packed for training. The same weights, the same names.

tests/test_training_model.py holds it to the reference model.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .config import MoondreamConfig
from .image_crops import normalize, patchify, stitch
from .reference_model import LAYER_NORM_EPS, Weights, apply_rope, fourier_features, linear, mlp, rope_tables
from .vocabulary import COLOURS, DENSE_KINDS, DENSE_TEXTS

BLOCK_LINEARS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


def block_weights(weights: Weights, name: str, norms: tuple[str, ...]) -> list[torch.Tensor]:
    return [weights[f"{name}.{part}.{kind}"] for part in (*norms, *BLOCK_LINEARS) for kind in ("weight", "bias")]


def _norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, LAYER_NORM_EPS)


def _heads(qkv: torch.Tensor, n_heads: int) -> tuple[torch.Tensor, ...]:
    n, length, width = qkv.shape
    return qkv.view(n, length, 3, n_heads, width // (3 * n_heads)).permute(2, 0, 3, 1, 4).unbind(0)


def _merge(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(2)


def vision_block(x: torch.Tensor, w: list[torch.Tensor], n_heads: int) -> torch.Tensor:
    """x [n, 729, E]; w = ln1, ln2, qkv, proj, fc1, fc2, each weight then bias."""
    q, k, v = _heads(F.linear(_norm(x, w[0], w[1]), w[4], w[5]), n_heads)
    x = x + F.linear(_merge(F.scaled_dot_product_attention(q, k, v)), w[6], w[7])
    return x + F.linear(F.gelu(F.linear(_norm(x, w[2], w[3]), w[8], w[9]), approximate="tanh"), w[10], w[11])


def text_block(
    x: torch.Tensor,
    w: list[torch.Tensor],
    n_heads: int,
    prefix: int,
    cos: torch.Tensor,
    sin: torch.Tensor,
    suffix_mask: torch.Tensor,
) -> torch.Tensor:
    """x [B, prefix + S, D]; the prefix sees all of itself, the suffix what suffix_mask [B, 1, S, prefix + S] adds."""
    n = _norm(x, w[0], w[1])
    q, k, v = _heads(F.linear(n, w[2], w[3]), n_heads)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    image = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix])
    tasks = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=suffix_mask.to(q.dtype))
    attended = F.linear(_merge(torch.cat([image, tasks], dim=2)), w[4], w[5])
    return x + attended + F.linear(F.gelu(F.linear(n, w[6], w[7]), approximate="tanh"), w[8], w[9])


def stitch_sources(tiling: tuple[int, int], config: MoondreamConfig) -> torch.Tensor:
    """Where each cell of the stitched grid comes from: an index into the patches of the local crops."""
    rows, cols = tiling
    grid = config.vision.grid
    return stitch(torch.arange(rows * cols * grid * grid).view(-1, grid * grid, 1), tiling, config.vision)[..., 0]


def pooled_features(features: torch.Tensor, tilings: list[tuple[int, int]], config: MoondreamConfig) -> torch.Tensor:
    """Features of all crops in one list [>= sum of crops, 729, E] -> stitched and pooled [images, 729, E]."""
    grid, out, at = config.vision.grid, [], 0
    patches = features.flatten(0, 1)
    for rows, cols in tilings:
        sources = stitch_sources((rows, cols), config).to(features.device, non_blocking=True)
        stitched = torch.index_select(patches, 0, sources.flatten() + (at + 1) * grid * grid).unflatten(
            0, sources.shape
        )
        pooled = F.adaptive_avg_pool2d(stitched.float().permute(2, 0, 1), grid)
        out.append(pooled.flatten(1).T.to(features.dtype))
        at += 1 + rows * cols
    return torch.stack(out)


def suffix_mask_of(segments: torch.Tensor, sees_image: torch.Tensor, prefix: int) -> torch.Tensor:
    """Additive [B, 1, S, prefix + S]. Padding slots see themselves, so that no row is empty."""
    batch, length = segments.shape
    order = torch.arange(length, device=segments.device)
    same = (segments[:, :, None] == segments[:, None, :]) & (order[:, None] >= order[None, :])
    visible = torch.cat([sees_image[:, :, None].expand(batch, length, prefix), same], dim=2)
    return torch.zeros(visible.shape, device=segments.device).masked_fill_(~visible, -1e4)[:, None]


def dense_head_weights(width: int, seed: int) -> Weights:
    """The auxiliary per-patch head: kind, colour, text and box sides. Used in training only."""
    out = 1 + len(DENSE_KINDS) + 1 + len(COLOURS) + 1 + len(DENSE_TEXTS) + 4
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(out, width, generator=generator) / math.sqrt(width) * 0.3,
        "bias": torch.zeros(out),
    }


class TrainingModel:
    """`weights` are leaf tensors; `heads` the dense heads on the vision features and inside the text decoder."""

    def __init__(self, config: MoondreamConfig, weights: Weights, heads: dict[str, Weights], compiled: bool) -> None:
        self.config, self.weights, self.heads = config, weights, heads
        self.vision_block = torch.compile(vision_block, dynamic=False) if compiled else vision_block
        self.text_block = torch.compile(text_block, dynamic=False) if compiled else text_block
        self.dense_layer = config.text.n_layers // 2

    def encode(self, crops: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 378, 378, 3] -> [n, 729, E]"""
        w, vision = self.weights, self.config.vision
        x = linear(w, "model.vision.patch_emb", patchify(normalize(crops), vision)) + w["model.vision.pos_emb"]
        for i in range(vision.enc_n_layers):
            x = self.vision_block(x, block_weights(w, f"model.vision.blocks.{i}", ("ln1", "ln2")), vision.enc_n_heads)
        return _norm(x, w["model.vision.post_ln.weight"], w["model.vision.post_ln.bias"])

    def image_features(self, crops: torch.Tensor, tilings: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Global and pooled local features, each [images, 729, E]. No tilings: every image is of the 1x1 tiling."""
        features = self.encode(crops)
        if not tilings:
            return features, features
        starts, at = [], 0
        for rows, cols in tilings:
            starts.append(at)
            at += 1 + rows * cols
        return features[starts], pooled_features(features, tilings, self.config)

    def suffix_embeddings(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """[B, S, D]: token rows, or the encoding of the value behind a coord or size token."""
        w, special = self.weights, self.config.tokenizer
        tokens = batch["tokens"]
        x = F.embedding(tokens, w["model.text.wte"])
        with torch.autocast(tokens.device.type, enabled=False):
            coord = fourier_features(batch["coord_in"][..., None], w["model.region.coord_features"])
            size = fourier_features(batch["size_in"], w["model.region.size_features"])
        x = torch.where(
            (tokens == special.coord_id)[..., None], linear(w, "model.region.coord_encoder", coord).to(x), x
        )
        return torch.where(
            (tokens == special.size_id)[..., None], linear(w, "model.region.size_encoder", size).to(x), x
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Hidden states of the suffix [B, S, D] before post_ln, and the outputs of the dense heads [B, 729, ...]."""
        w, text = self.weights, self.config.text
        whole, local = self.image_features(batch["crops"], batch["tilings"].tolist())
        image = mlp(w, "model.vision.proj_mlp", torch.cat([whole, local], dim=-1))
        count, prefix = image.shape[0], self.config.prefix_length
        bos = w["model.text.wte"][self.config.tokenizer.bos_id].expand(count, 1, -1)
        x = torch.cat([bos, image.to(bos.dtype), self.suffix_embeddings(batch)], dim=1)
        prefix_positions = torch.arange(prefix, device=x.device).expand(count, -1)
        positions = torch.cat([prefix_positions, batch["positions"]], dim=1)
        cos, sin = rope_tables(positions.flatten(), text.head_dim // 2, text.rope_theta)
        cos, sin = (t.view(count, 1, positions.shape[1], -1) for t in (cos, sin))
        mask = suffix_mask_of(batch["segments"], batch["sees_image"], prefix).bfloat16()
        middle = x
        for i in range(text.n_layers):
            weights = block_weights(w, f"model.text.blocks.{i}", ("ln",))
            x = self.text_block(x, weights, text.n_heads, prefix, cos, sin, mask)
            if i + 1 == self.dense_layer:
                middle = x
        dense_text = F.linear(middle[:, 1:prefix], self.heads["text"]["weight"], self.heads["text"]["bias"])
        dense_vision = F.linear(whole, self.heads["vision"]["weight"], self.heads["vision"]["bias"])
        return {"hidden": x[:, prefix:], "dense_vision": dense_vision, "dense_text": dense_text}
