"""The reference model's maths, batched and packed for training. The same weights, the same names.

tests/test_training_model.py holds it to the reference model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .config import MoeConfig, MoondreamConfig, Numerics
from .image_crops import normalize, patchify, stitch
from .reference_model import LAYER_NORM_EPS, Weights, apply_rope, fourier_features, linear, mlp, rope_tables
from .vocabulary import COLOURS, DENSE_KINDS, DENSE_TEXTS

BLOCK_LINEARS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


def block_weights(weights: Weights, name: str, parts: tuple[str, ...]) -> list[torch.Tensor]:
    return [weights[f"{name}.{part}.{kind}"] for part in parts for kind in ("weight", "bias")]


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
    """x [B, prefix + S, D]; the prefix sees all of itself, the suffix what suffix_mask [B, 1, S, prefix + S] adds.

    A block without experts and tau; w = ln, qkv, proj, fc1, fc2, each weight then bias.
    """
    n = _norm(x, w[0], w[1])
    q, k, v = _heads(F.linear(n, w[2], w[3]), n_heads)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    image = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix])
    tasks = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=suffix_mask.to(q.dtype))
    attended = F.linear(_merge(torch.cat([image, tasks], dim=2)), w[4], w[5])
    return x + attended + F.linear(F.gelu(F.linear(n, w[6], w[7]), approximate="tanh"), w[8], w[9])


def scaled_heads(
    qkv: torch.Tensor,
    wq: torch.Tensor,
    wv: torch.Tensor,
    alpha: torch.Tensor,
    positions: torch.Tensor,
    n_heads: int,
    numerics: Numerics,
) -> torch.Tensor:
    """As scale_heads of the reference model, for qkv [B, L, 3 * D] and positions [B, L]. Gradients pass the rounding."""
    u = F.gelu(qkv, approximate="tanh" if numerics.tau_gelu == "tanh" else "none")
    by_position = 0.5 + torch.sigmoid(alpha.float() * torch.log(positions.float() + 1)[..., None])
    if numerics.tau_position == "bf16":
        by_position = by_position + (by_position.bfloat16().float() - by_position).detach()
    q, k, v = qkv.chunk(3, dim=-1)

    def scaled(x: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
        scale = (torch.tanh(F.linear(u, products)) + by_position).to(x.dtype)
        return (x.unflatten(-1, (n_heads, -1)) * scale[..., None]).flatten(-2)

    return torch.cat([scaled(q, wq), k, scaled(v, wv)], dim=-1)


class Reordered(torch.autograd.Function):
    """Rows in another order. What goes back is read too, not added: far faster on a GPU, and the same every time."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None


def unevenness(logits: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """1 where a router [T, experts] favours no expert; more where those that it likes best get most tokens (`counts`) too."""
    liked = torch.softmax(logits.float(), dim=-1).mean(dim=0)
    return len(counts) * (liked * counts).sum() / counts.sum()


def chosen_experts(
    n: torch.Tensor, weights: Weights, name: str, moe: MoeConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """n [T, D] -> [T, D]: each expert's tokens together, in one product each. And how unevenly they are used."""
    logits = F.linear(n, weights[name + ".router.weight"], weights[name + ".router.bias"])
    best = logits.topk(moe.experts_per_token)
    shares = torch.softmax(best.values.float(), dim=-1)
    expert_of = best.indices.flatten()
    order = expert_of.argsort()
    inverse = order.argsort()
    counts = torch.bincount(expert_of, minlength=moe.num_experts)
    copies = n.to(logits.dtype)[:, None].expand(-1, moe.experts_per_token, -1)
    sorted_rows = Reordered.apply(copies.flatten(0, 1), order, inverse)
    up, down = weights[name + ".fc1.weight"], weights[name + ".fc2.weight"]
    outputs = []
    for expert, rows in enumerate(sorted_rows.split(counts.tolist())):
        a, g = F.linear(rows, up[expert]).chunk(2, dim=-1)
        outputs.append(F.linear(F.gelu(a) * (g + 1), down[expert]))
    found = Reordered.apply(torch.cat(outputs), inverse, order).unflatten(0, best.indices.shape)
    return (found * shares[..., None].to(found.dtype)).sum(dim=1), unevenness(logits, counts)


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


class Turn(NamedTuple):
    """Where tokens stand [B, L], and the rotation of that place, each [B, 1, L, head_dim / 4]."""

    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


class TrainingModel:
    """`weights` are leaf tensors; `heads` the dense heads on the vision features and inside the text decoder, or none."""

    def __init__(self, config: MoondreamConfig, weights: Weights, heads: dict[str, Weights], compiled: bool) -> None:
        self.config, self.weights, self.heads = config, weights, heads
        self.vision_block = torch.compile(vision_block, dynamic=False) if compiled else vision_block
        self.text_block = torch.compile(text_block, dynamic=False) if compiled else text_block
        self.dense_layer = config.text.n_layers // 2
        self.uneven: dict[int, torch.Tensor] = {}  # of each block with experts, of the last batch
        self.states: dict[int, torch.Tensor] = {}  # what blocks that above() trains, but the last, made of the last batch

    def encode(self, crops: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 378, 378, 3] -> [n, 729, E]"""
        w, vision = self.weights, self.config.vision
        x = linear(w, "model.vision.patch_emb", patchify(normalize(crops), vision)) + w["model.vision.pos_emb"]
        for i in range(vision.enc_n_layers):
            block = block_weights(w, f"model.vision.blocks.{i}", ("ln1", "ln2", *BLOCK_LINEARS))
            x = self.vision_block(x, block, vision.enc_n_heads)
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

    def block_heads(self, layer: int, x: torch.Tensor, turn: Turn) -> tuple[torch.Tensor, ...]:
        """What block `layer` makes of x [B, L, D] before it attends: the norm's output, and q, k, v by heads."""
        w, text, name = self.weights, self.config.text, f"model.text.blocks.{layer}"
        n = _norm(x, w[name + ".ln.weight"], w[name + ".ln.bias"])
        qkv = linear(w, name + ".attn.qkv", n)
        if text.tau_attn:
            tau = (w[f"{name}.attn.tau.{part}"] for part in ("wq", "wv", "alpha"))
            qkv = scaled_heads(qkv, *tau, turn.positions, text.n_heads, self.config.numerics)
        q, k, v = _heads(qkv, text.n_heads)
        return n, apply_rope(q, turn.cos, turn.sin), apply_rope(k, turn.cos, turn.sin), v

    def block_sum(self, layer: int, x: torch.Tensor, n: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """attended [B, heads, L, head_dim]; the block's output."""
        w, text, name = self.weights, self.config.text, f"model.text.blocks.{layer}"
        x = x + linear(w, name + ".attn.proj", _merge(attended))
        if not text.has_experts(layer):
            return x + mlp(w, name + ".mlp", n)
        fed, self.uneven[layer] = chosen_experts(n.flatten(0, 1), w, name + ".mlp", text.moe)
        return x + fed.view(*n.shape[:2], -1)

    def described_block(self, layer: int, x: torch.Tensor, turn: Turn, suffix_mask: torch.Tensor) -> torch.Tensor:
        """A block with experts or tau, part by part. After the last one only the suffix is there: nothing reads the rest."""
        prefix = self.config.prefix_length
        n, q, k, v = self.block_heads(layer, x, turn)
        tasks = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=suffix_mask.to(q.dtype))
        if layer + 1 == self.config.text.n_layers:
            return self.block_sum(layer, x[:, prefix:], n[:, prefix:], tasks)
        image = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix])
        return self.block_sum(layer, x, n, torch.cat([image, tasks], dim=2))

    @torch.no_grad()
    def prefix_below(self, whole: torch.Tensor, local: torch.Tensor, layers: int) -> list[torch.Tensor]:
        """Of images [B, 729, E]: what block `layers` reads of the prefix, then keys and values of the blocks below."""
        x = self.prefix_embeddings(whole, local)
        turn = self.turn_of(torch.arange(x.shape[1], device=x.device)[None])
        kept = []
        for i in range(layers):
            n, q, k, v = self.block_heads(i, x, turn)
            x = self.block_sum(i, x, n, F.scaled_dot_product_attention(q, k, v))
            kept += [k, v]
        return [t.bfloat16() for t in (x, *kept)]

    def above(self, batch: dict[str, torch.Tensor], below: list[torch.Tensor]) -> torch.Tensor:
        """The suffix of forward() from prefix_below() of the batch's images. Gradients reach the suffix's inputs."""
        x, (kept, states) = self.suffix_embeddings(batch), (below[1:], below[0])
        prefix, layers = self.config.prefix_length, len(kept) // 2
        mask = suffix_mask_of(batch["segments"], batch["sees_image"], prefix).bfloat16()
        turn = self.turn_of(batch["positions"])
        for i in range(layers):
            n, q, k, v = self.block_heads(i, x, turn)
            keys, values = (torch.cat([old.to(new.dtype), new], dim=2) for old, new in zip(kept[2 * i :], (k, v)))
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask.to(q.dtype))
            x = self.block_sum(i, x, n, attended)
        x = torch.cat([states.to(x.dtype), x], dim=1)
        turn = self.turn_of(self.all_positions(batch))
        for i in range(layers, self.config.text.n_layers):
            x = self.described_block(i, x, turn, mask)
            if i + 1 < self.config.text.n_layers:
                self.states[i] = x
        return x

    def turn_of(self, positions: torch.Tensor) -> Turn:
        text = self.config.text
        cos, sin = rope_tables(positions.flatten(), text.head_dim // 2, text.rope_theta)
        count, length = positions.shape
        return Turn(positions, *(t.view(count, 1, length, -1) for t in (cos, sin)))

    def all_positions(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        count, prefix = batch["positions"].shape[0], self.config.prefix_length
        of_prefix = torch.arange(prefix, device=batch["positions"].device).expand(count, -1)
        return torch.cat([of_prefix, batch["positions"]], dim=1)

    def prefix_embeddings(self, whole: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """Vision features, each [B, 729, E] -> BOS and the image [B, 730, D]."""
        image = mlp(self.weights, "model.vision.proj_mlp", torch.cat([whole, local], dim=-1))
        bos = self.weights["model.text.wte"][self.config.tokenizer.bos_id].expand(image.shape[0], 1, -1)
        return torch.cat([bos, image.to(bos.dtype)], dim=1)

    def forward(self, batch: dict[str, torch.Tensor], block_inputs: list[torch.Tensor] | None = None) -> dict:
        """Hidden states of the suffix [B, S, D] before post_ln, and the outputs of the dense heads [B, 729, ...].

        A batch has "crops" and "tilings", or the vision features of its images: "whole" and "local" [B, 729, E].
        `block_inputs` receives what each text block reads.
        """
        w, text, prefix = self.weights, self.config.text, self.config.prefix_length
        if "whole" in batch:
            whole, local = batch["whole"], batch["local"]
        else:
            whole, local = self.image_features(batch["crops"], batch["tilings"].tolist())
        x = torch.cat([self.prefix_embeddings(whole, local), self.suffix_embeddings(batch)], dim=1)
        turn = self.turn_of(self.all_positions(batch))
        mask = suffix_mask_of(batch["segments"], batch["sees_image"], prefix).bfloat16()
        middle = x
        for i in range(text.n_layers):
            if block_inputs is not None:
                block_inputs.append(x)
            if text.tau_attn or text.has_experts(i):
                x = self.described_block(i, x, turn, mask)
            else:
                weights = block_weights(w, f"model.text.blocks.{i}", ("ln", *BLOCK_LINEARS))
                x = self.text_block(x, weights, text.n_heads, prefix, turn.cos, turn.sin, mask)
            if i + 1 == self.dense_layer:
                middle = x
        out = {"hidden": x[:, -batch["tokens"].shape[1] :]}
        for name, features in (("vision", whole), ("text", middle[:, 1:prefix])):
            if name in self.heads:
                head = self.heads[name]
                out["dense_" + name] = F.linear(features, head["weight"], head["bias"])
        return out
