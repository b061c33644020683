"""The oracle: a Moondream 2 (January to June 2025), 0.5B or 3 model in plain PyTorch, obvious rather than fast.

Weights are a flat dictionary in the published naming ("model.vision...", "model.text...", "model.region...").
Every linear weight is [out, in]. All maths runs in the dtype of the weights, float32 unless told otherwise.
Pass a dictionary as `capture` to keep every stage's tensor under a name.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from .config import MoeConfig, MoondreamConfig, Numerics
from .image_crops import adaptive_pool, make_crops, normalize, patchify, stitch

Weights = dict[str, torch.Tensor]
Capture = dict[str, torch.Tensor] | None

LAYER_NORM_EPS = 1e-5


def keep(capture: Capture, name: str, tensor: torch.Tensor) -> None:
    if capture is not None:
        capture[name] = tensor.detach().clone()


def linear(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weights[name + ".weight"], weights[name + ".bias"])


def layer_norm(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[name + ".weight"], weights[name + ".bias"], LAYER_NORM_EPS)


def mlp(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """fc2(gelu_tanh(fc1(x)))"""
    return linear(weights, name + ".fc2", F.gelu(linear(weights, name + ".fc1", x), approximate="tanh"))


def experts(weights: Weights, name: str, n: torch.Tensor, moe: MoeConfig) -> torch.Tensor:
    """n [T, D] -> [T, D]: the experts of the largest router logits, weighted by the softmax of these.

    Among equal logits the lower index comes first. An expert: down(gelu(a) * (g + 1)) with a, g = the halves of up(n).
    """
    order = linear(weights, name + ".router", n).sort(dim=-1, descending=True, stable=True)
    chosen = order.indices[:, : moe.experts_per_token]
    shares = torch.softmax(order.values[:, : moe.experts_per_token].float(), dim=-1).to(n.dtype)
    out = torch.zeros_like(n)
    for expert in range(moe.num_experts):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        a, g = F.linear(n[token], weights[name + ".fc1.weight"][expert]).chunk(2, dim=-1)
        y = F.linear(F.gelu(a) * (g + 1), weights[name + ".fc2.weight"][expert])
        out[token] += shares[token, place][:, None] * y
    return out


def scale_heads(
    weights: Weights, name: str, qkv: torch.Tensor, positions: torch.Tensor, n_heads: int, numerics: Numerics
) -> torch.Tensor:
    """qkv [T, 3 * D] with its query and value heads scaled by their token and position ("tau")."""
    u = F.gelu(qkv, approximate="tanh" if numerics.tau_gelu == "tanh" else "none")
    alpha = weights[name + ".alpha"].double()
    by_position = 0.5 + torch.sigmoid(alpha * torch.log(positions.double() + 1)[:, None])
    by_position = by_position.float()
    if numerics.tau_position == "bf16":
        by_position = by_position.bfloat16()
    by_position = by_position.to(qkv.dtype)
    q, k, v = qkv.chunk(3, dim=-1)

    def scaled(x: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
        scale = torch.tanh(F.linear(u, products)) + by_position
        return (x.unflatten(-1, (n_heads, -1)) * scale[..., None]).flatten(-2)

    return torch.cat([scaled(q, weights[name + ".wq"]), k, scaled(v, weights[name + ".wv"])], dim=-1)


def split_heads(qkv: torch.Tensor, n_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[..., T, 3 * n_heads * head_dim] -> q, k, v of [..., n_heads, T, head_dim]; rows of a third are head-major."""
    *lead, length, width = qkv.shape
    parts = qkv.reshape(*lead, length, 3, n_heads, width // (3 * n_heads))
    q, k, v = parts.unbind(dim=-3)
    return q.transpose(-3, -2), k.transpose(-3, -2), v.transpose(-3, -2)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """softmax(q k^T / sqrt(head_dim)) v, heads concatenated; `visible` is [Tq, Tk], true where a key may be seen."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    out = torch.softmax(scores, dim=-1) @ v
    return out.transpose(-3, -2).flatten(-2)


def rope_tables(positions: torch.Tensor, rotary_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of [T, rotary_dim / 2]: angle = position * theta^(-2 j / rotary_dim)."""
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device) / rotary_dim
    angles = positions.float()[:, None] * (1.0 / theta**exponent)[None, :]
    return angles.cos(), angles.sin()


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [..., T, head_dim]: pairs (x[j], x[j + r]) of the first 2 r dims turn, the others pass. r = cos.shape[-1]."""
    r = cos.shape[-1]
    a, b, rest = x[..., :r].float(), x[..., r : 2 * r].float(), x[..., 2 * r :]
    turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)


def prefix_mask(q_positions: torch.Tensor, k_positions: torch.Tensor, prefix: int) -> torch.Tensor:
    """[Tq, Tk]: causal, and positions below `prefix` (BOS and image) all see each other."""
    q, k = q_positions[:, None], k_positions[None, :]
    return (k <= q) | ((q < prefix) & (k < prefix))


def fourier_features(x: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """x [..., d], frequencies [d, n] -> [..., 2 n]: all cosines first."""
    z = (2 * math.pi * x) @ frequencies
    return torch.cat([z.cos(), z.sin()], dim=-1)


class TextCache:
    """Keys (after RoPE) and values of one sequence: per layer [heads, T, head_dim]."""

    def __init__(self, n_layers: int) -> None:
        self.keys: list[torch.Tensor | None] = [None] * n_layers
        self.values: list[torch.Tensor | None] = [None] * n_layers
        self.length = 0

    def append(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.keys[layer] is not None:
            k = torch.cat([self.keys[layer], k], dim=1)
            v = torch.cat([self.values[layer], v], dim=1)
        self.keys[layer], self.values[layer] = k, v
        return k, v

    def copy(self) -> TextCache:
        other = TextCache(len(self.keys))
        other.keys, other.values, other.length = list(self.keys), list(self.values), self.length
        return other


def load_weights(folder: Path, file_name: str = "model.safetensors", device: str = "cpu") -> Weights:
    """Of one file; where it is not there, of the files that its index names."""
    index = folder / (file_name + ".index.json")
    if (folder / file_name).exists() or not index.exists():
        return load_file(str(folder / file_name), device=device)
    files = json.loads(index.read_text())["weight_map"]
    tensors = {file: load_file(str(folder / file), device=device) for file in sorted(set(files.values()))}
    return {name: tensors[file][name] for name, file in files.items()}


class ReferenceModel:
    def __init__(self, config: MoondreamConfig, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.device = weights["model.text.wte"].device
        self.dtype = weights["model.text.wte"].dtype

    @staticmethod
    def load(
        folder: Path | str,
        config: MoondreamConfig,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        file_name: str = "model.safetensors",
    ) -> ReferenceModel:
        weights = load_weights(Path(folder), file_name, device)
        return ReferenceModel(config, {name: tensor.to(dtype) for name, tensor in weights.items()})

    def save(self, path: Path | str, dtype: torch.dtype = torch.bfloat16) -> None:
        save_file(
            {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in self.weights.items()}, str(path)
        )

    # ---- vision ----

    def encode_crops(self, crops: torch.Tensor, capture: Capture = None) -> torch.Tensor:
        """uint8 crops [n, 378, 378, 3] -> features [n, 729, E]. A crop attends only to itself."""
        w, vision = self.weights, self.config.vision
        patches = patchify(normalize(crops.to(self.device), self.dtype), vision)
        x = linear(w, "model.vision.patch_emb", patches) + w["model.vision.pos_emb"]
        keep(capture, "vision.patch_embedding", x)
        for i in range(vision.enc_n_layers):
            name = f"model.vision.blocks.{i}"
            q, k, v = split_heads(linear(w, name + ".attn.qkv", layer_norm(w, name + ".ln1", x)), vision.enc_n_heads)
            x = x + linear(w, name + ".attn.proj", attention(q, k, v, None))
            x = x + mlp(w, name + ".mlp", layer_norm(w, name + ".ln2", x))
            keep(capture, f"vision.block.{i}", x)
        x = layer_norm(w, "model.vision.post_ln", x)
        keep(capture, "vision.post_ln", x)
        return x

    def image_embeddings(self, image: Image.Image, capture: Capture = None) -> torch.Tensor:
        """RGB image -> [729, D]."""
        vision = self.config.vision
        crops, tiling = make_crops(image.convert("RGB"), vision)
        keep(capture, "image.crops", torch.from_numpy(crops).flatten(2))
        features = self.encode_crops(torch.from_numpy(crops), capture)
        stitched = stitch(features[1:], tiling, vision)
        pooled = adaptive_pool(stitched, vision.grid)
        keep(capture, "vision.stitched", stitched)
        keep(capture, "vision.pooled", pooled)
        embeddings = mlp(self.weights, "model.vision.proj_mlp", torch.cat([features[0], pooled], dim=-1))
        keep(capture, "vision.projection", embeddings)
        return embeddings

    # ---- text ----

    def embed(self, token_ids: list[int]) -> torch.Tensor:
        return self.weights["model.text.wte"][torch.tensor(token_ids, dtype=torch.long, device=self.device)]

    def decode(self, x: torch.Tensor, cache: TextCache, prefix: int, capture: Capture = None) -> torch.Tensor:
        """Runs embeddings x [T, D] at the positions after `cache`, appends to it; returns hidden [T, D] before post_ln.

        `prefix` = 730 with an image, 0 for text alone.
        """
        w, text = self.weights, self.config.text
        start = cache.length
        q_positions = torch.arange(start, start + x.shape[0], device=self.device)
        k_positions = torch.arange(0, start + x.shape[0], device=self.device)
        visible = prefix_mask(q_positions, k_positions, prefix)
        cos, sin = rope_tables(q_positions, text.head_dim // 2, text.rope_theta)
        for i in range(text.n_layers):
            name = f"model.text.blocks.{i}"
            n = layer_norm(w, name + ".ln", x)
            qkv = linear(w, name + ".attn.qkv", n)
            if text.tau_attn:
                qkv = scale_heads(w, name + ".attn.tau", qkv, q_positions, text.n_heads, self.config.numerics)
            q, k, v = split_heads(qkv, text.n_heads)
            k, v = cache.append(i, apply_rope(k, cos, sin), v)
            attended = linear(w, name + ".attn.proj", attention(apply_rope(q, cos, sin), k, v, visible))
            if text.has_experts(i):
                x = x + attended + experts(w, name + ".mlp", n, text.moe)
            else:
                x = x + attended + mlp(w, name + ".mlp", n)
            keep(capture, f"text.block.{i}", x)
        cache.length += x.shape[0]
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [..., D] -> [..., vocab]"""
        return linear(self.weights, "model.text.lm_head", layer_norm(self.weights, "model.text.post_ln", hidden))

    # ---- regions ----

    def region_decoder(self, name: str, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [D] (before post_ln) -> its bins' logits."""
        region, choice = self.config.region, self.config.numerics.region_input
        if region.use_ln and choice != "hidden":
            if choice == "post_norm":
                hidden = layer_norm(self.weights, "model.text.post_ln", hidden)
            hidden = layer_norm(self.weights, "model.region.ln", hidden)
        return (linear if region.decoder_arch == "linear" else mlp)(self.weights, name, hidden)

    def coord_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [D] (before post_ln) -> [1024]"""
        return self.region_decoder("model.region.coord_decoder", hidden)

    def size_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [D] (before post_ln) -> [2, 1024]: width, height"""
        return self.region_decoder("model.region.size_decoder", hidden).reshape(*hidden.shape[:-1], 2, -1)

    def coord_value(self, bin_index: int) -> float:
        bins = self.config.region.coord_out_dim
        return bin_index / (bins if self.config.numerics.coord_divisor == "num_bins" else bins - 1)

    def size_value(self, bin_index: int) -> float:
        region = self.config.region
        return bin_index / (region.size_out_dim // 2) if region.linear_sizes else size_value(bin_index)

    def encode_coord(self, value: torch.Tensor) -> torch.Tensor:
        """value [..., 1] in [0, 1] -> embedding [..., D]"""
        features = fourier_features(value, self.weights["model.region.coord_features"])
        return linear(self.weights, "model.region.coord_encoder", features)

    def encode_size(self, value: torch.Tensor) -> torch.Tensor:
        """value [..., 2] = (width, height) -> embedding [..., D]"""
        features = fourier_features(value, self.weights["model.region.size_features"])
        return linear(self.weights, "model.region.size_encoder", features)


def coord_value(bin_index: int) -> float:
    return bin_index / 1023


def size_value(bin_index: int) -> float:
    return 2.0 ** (-10 + 10 * bin_index / 1023)


def coord_bin(value: float) -> float:
    """Inverse of coord_value, not rounded."""
    return min(max(value, 0.0), 1.0) * 1023


def size_bin(value: float) -> float:
    """Inverse of size_value, not rounded."""
    return (math.log2(min(max(value, 1 / 1024), 1.0)) + 10) / 10 * 1023


def parameter_shapes(config: MoondreamConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint in the published naming."""
    text, vision, region = config.text, config.vision, config.region
    shapes: dict[str, tuple[int, ...]] = {}

    def add_linear(name: str, out_dim: int, in_dim: int) -> None:
        shapes[name + ".weight"] = (out_dim, in_dim)
        shapes[name + ".bias"] = (out_dim,)

    def add_norm(name: str, dim: int) -> None:
        shapes[name + ".weight"] = (dim,)
        shapes[name + ".bias"] = (dim,)

    e, d = vision.enc_dim, text.dim
    add_linear("model.vision.patch_emb", e, vision.patch_dim)
    shapes["model.vision.pos_emb"] = (1, vision.num_patches, e)
    for i in range(vision.enc_n_layers):
        name = f"model.vision.blocks.{i}"
        add_norm(name + ".ln1", e)
        add_linear(name + ".attn.qkv", 3 * e, e)
        add_linear(name + ".attn.proj", e, e)
        add_norm(name + ".ln2", e)
        add_linear(name + ".mlp.fc1", vision.enc_ff_dim, e)
        add_linear(name + ".mlp.fc2", e, vision.enc_ff_dim)
    add_norm("model.vision.post_ln", e)
    add_linear("model.vision.proj_mlp.fc1", vision.proj_inner_dim, 2 * e)
    add_linear("model.vision.proj_mlp.fc2", vision.proj_out_dim, vision.proj_inner_dim)
    shapes["model.text.wte"] = (text.vocab_size, d)
    for i in range(text.n_layers):
        name = f"model.text.blocks.{i}"
        add_norm(name + ".ln", d)
        add_linear(name + ".attn.qkv", 3 * d, d)
        add_linear(name + ".attn.proj", d, d)
        if text.tau_attn:
            shapes[name + ".attn.tau.wq"] = shapes[name + ".attn.tau.wv"] = (text.n_heads, 3 * d)
            shapes[name + ".attn.tau.alpha"] = (text.n_heads,)
        if text.has_experts(i):
            add_linear(name + ".mlp.router", text.moe.num_experts, d)
            shapes[name + ".mlp.fc1.weight"] = (text.moe.num_experts, 2 * text.moe.expert_inner_dim, d)
            shapes[name + ".mlp.fc2.weight"] = (text.moe.num_experts, d, text.moe.expert_inner_dim)
            continue
        add_linear(name + ".mlp.fc1", text.inner_dim, d)
        add_linear(name + ".mlp.fc2", d, text.inner_dim)
    add_norm("model.text.post_ln", d)
    add_linear("model.text.lm_head", text.vocab_size, d)
    add_linear("model.region.coord_encoder", region.dim, region.coord_feat_dim)
    add_linear("model.region.size_encoder", region.dim, region.size_feat_dim)
    for name, bins in (("coord", region.coord_out_dim), ("size", region.size_out_dim)):
        decoder = f"model.region.{name}_decoder"
        if region.decoder_arch == "linear":
            add_linear(decoder, bins, region.dim)
        else:
            add_linear(decoder + ".fc1", region.inner_dim, region.dim)
            add_linear(decoder + ".fc2", bins, region.inner_dim)
    if region.use_ln:
        add_norm("model.region.ln", region.dim)
    shapes["model.region.coord_features"] = (1, region.coord_feat_dim // 2)
    shapes["model.region.size_features"] = (2, region.size_feat_dim // 2)
    return shapes


FIXED_TENSORS = ("model.region.coord_features", "model.region.size_features")


def initial_weights(config: MoondreamConfig, seed: int) -> Weights:
    """Weights to start training from. The Fourier frequencies are fixed: |2 pi x W| stays below 4 pi."""
    generator = torch.Generator().manual_seed(seed)
    depth = {"vision": config.vision.enc_n_layers, "text": config.text.n_layers, "region": 1}
    weights: Weights = {}
    for name, shape in parameter_shapes(config).items():
        if name in FIXED_TENSORS:
            value = torch.randn(shape, generator=generator).clamp(-2, 2).bfloat16().float()
        elif name.endswith(".bias"):
            value = torch.zeros(shape)
        elif len(shape) == 1:
            value = torch.ones(shape)
        else:
            std = 0.02 if name.endswith(("wte", "pos_emb")) else 1 / math.sqrt(shape[-1])
            if name.endswith(("attn.proj.weight", "mlp.fc2.weight")) and ".blocks." in name:
                std /= math.sqrt(2 * depth[name.split(".")[1]])
            value = torch.randn(shape, generator=generator) * std
        weights[name] = value
    return weights
