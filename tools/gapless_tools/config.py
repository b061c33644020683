"""Reads config.json. Missing keys take the values of Moondream 2, June 2025."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class MoeConfig:
    """From start_layer on, experts stand where the dense feed-forward was."""

    num_experts: int
    start_layer: int
    experts_per_token: int
    expert_inner_dim: int


@dataclass
class TextConfig:
    dim: int = 2048
    ff_dim: int | None = None  # 4 * dim when absent
    n_layers: int = 24
    vocab_size: int = 51200
    max_context: int = 2048
    n_heads: int = 32
    rope_theta: float = 10000.0
    moe: MoeConfig | None = None
    tau_attn: bool = False

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.moe.start_layer

    @property
    def inner_dim(self) -> int:
        return self.ff_dim if self.ff_dim is not None else 4 * self.dim

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


@dataclass
class VisionConfig:
    enc_dim: int = 1152
    enc_patch_size: int = 14
    enc_n_layers: int = 27
    enc_ff_dim: int = 4304
    enc_n_heads: int = 16
    proj_out_dim: int = 2048
    crop_size: int = 378
    in_channels: int = 3
    max_crops: int = 12
    overlap_margin: int = 4
    proj_inner_dim: int = 8192

    @property
    def grid(self) -> int:
        """Patches along one side of a crop (27)."""
        return self.crop_size // self.enc_patch_size

    @property
    def num_patches(self) -> int:
        return self.grid * self.grid

    @property
    def patch_dim(self) -> int:
        return self.in_channels * self.enc_patch_size**2


@dataclass
class RegionConfig:
    dim: int = 2048
    coord_feat_dim: int = 256
    coord_out_dim: int = 1024
    size_feat_dim: int = 512
    size_out_dim: int = 2048
    inner_dim: int = 8192
    decoder_arch: str = "mlp"  # or "linear": one product each
    use_ln: bool = False
    linear_sizes: bool = False  # a size is bin / bins


@dataclass
class Numerics:
    """Where public implementations of the same weights differ (docs/published_weights.md)."""

    tau_gelu: str = "tanh"
    tau_position: str = "bf16"
    coord_divisor: str = "last_bin"
    region_input: str = "norm"
    answer_feed: str = "once"


def _default_templates() -> dict[str, Any]:
    return {
        "caption": {"short": [1, 32708, 2, 12492, 3], "normal": [1, 32708, 2, 6382, 3], "long": [1, 32708, 2, 4059, 3]},
        "query": {"prefix": [1, 15381, 2], "suffix": [3, 3]},
        "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
        "point": {"prefix": [1, 2581, 2], "suffix": [3]},
    }


@dataclass
class TokenizerConfig:
    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int = 4
    coord_id: int = 5
    size_id: int = 6
    start_ground_points_id: int = 7
    end_ground_id: int = 9
    # No token for coordinates: any token but eos begins an object. The ids above that are missing are -1.
    any_token_is_coord: bool = False
    object_leading_space: bool = True
    question_leading_space: bool = False
    templates: dict[str, Any] = field(default_factory=_default_templates)


@dataclass
class MoondreamConfig:
    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    region: RegionConfig = field(default_factory=RegionConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    numerics: Numerics = field(default_factory=Numerics)

    @property
    def prefix_length(self) -> int:
        """BOS plus the image embeddings (730)."""
        return 1 + self.vision.num_patches

    @property
    def outlines(self) -> bool:
        """Whether the model has the segment skill."""
        return "segment" in self.tokenizer.templates

    @property
    def reasons(self) -> bool:
        return "reasoning" in self.tokenizer.templates["query"]


def _section(cls: type, values: dict[str, Any]) -> Any:
    known = {f.name for f in dataclasses.fields(cls)}
    return cls(**{key: value for key, value in values.items() if key in known})


def config_from_dict(data: dict[str, Any]) -> MoondreamConfig:
    text = _section(TextConfig, data.get("text", {}))
    if text.moe is not None:
        text.moe = MoeConfig(**data["text"]["moe"])
    return MoondreamConfig(
        text=text,
        vision=_section(VisionConfig, data.get("vision", {})),
        region=_section(RegionConfig, data.get("region", {})),
        tokenizer=_section(TokenizerConfig, data.get("tokenizer", {})),
        numerics=Numerics(**data.get("gapless", {}).get("numerics", {})),
    )


def load_config(folder: Path | str) -> MoondreamConfig:
    """`folder` holds config.json; a folder without one is Moondream 2 of June 2025."""
    path = Path(folder) / "config.json"
    return config_from_dict(json.loads(path.read_text()) if path.exists() else {})
