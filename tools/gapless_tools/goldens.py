"""Golden files: every stage of one image, or several, through the oracle, small enough to commit.

A tensor is seen as rows (all but its last dimension, flattened) and every `row_stride`-th row is kept, from row 0. The
JSON file beside the safetensors file has, per tensor: its full shape, the stride, and the L2 norm of the full tensor
(float64 sum). Crops are uint8 [crops, 378 rows, 378 * 3] and come with the CRC-32 of each full crop's bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer

from .reference_model import ReferenceModel
from .skills import Generation, Limits, encode_images, run_skill
from .tiling import tiling_of_image

Request = tuple[str, str] | tuple[str, str, bool]  # skill, argument, and whether it reasons first


def thinned(tensor: torch.Tensor, max_rows: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """The rows that are kept, and what to say about the tensor."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    stride = max(1, -(-rows.shape[0] // max_rows))
    if stride > 1 and stride % 2 == 0:
        stride += 1  # an odd stride walks over all columns of the patch grids
    about: dict[str, Any] = {"shape": list(tensor.shape), "row_stride": stride}
    if tensor.dtype.is_floating_point:
        about["l2_norm"] = float(tensor.double().pow(2).sum().sqrt())
    return rows[::stride].contiguous(), about


def described(generation: Generation, request: Request) -> dict[str, Any]:
    out: dict[str, Any] = {
        "skill": request[0],
        "argument": request[1],
        "prompt_ids": generation.prompt_ids,
        "token_ids": generation.token_ids,
        "margins": [round(m, 5) for m in generation.margins],
        "finish_reason": generation.finish_reason,
    }
    if generation.reasoning is not None:
        parts = [[part.start, part.end, part.points] for part in generation.grounding]
        out |= {"reasoning": generation.reasoning, "grounding": parts}
    if generation.text is not None:
        out["text"] = generation.text
    if generation.points is None and generation.reasoning is None:
        return out
    out |= {"bins": generation.bins, "bin_margins": [round(m, 5) for m in generation.bin_margins]}
    if generation.points is None:
        return out
    return out | {"points": generation.points} | ({"boxes": generation.boxes} if request[0] != "point" else {})


@torch.no_grad()
def write_golden(
    model: ReferenceModel,
    tokenizer: Tokenizer,
    image_paths: list[Path],
    requests: list[Request],
    out: Path,
    max_rows: int,
    notes: dict[str, Any],
    limits: Limits = Limits(),
) -> None:
    """Writes `out`.safetensors and `out`.json. The tensors of request i are under "request.i.".

    Of several images only the text stages are kept: each image's own are in the golden of that image alone.
    """
    stages: dict[str, torch.Tensor] = {}
    about: dict[str, Any] = dict(notes)
    images = [Image.open(path).convert("RGB") for path in image_paths]
    cache = encode_images(model, images, stages)
    if len(images) == 1:
        tiling = tiling_of_image(images[0].width, images[0].height, model.config.vision)
        about |= {"image": os.path.relpath(image_paths[0], out.parent), "tiling": tiling}
        about["crop_crc32"] = [zlib.crc32(crop.numpy().tobytes()) for crop in stages["image.crops"]]
    elif images:
        about["images"] = [os.path.relpath(path, out.parent) for path in image_paths]
        stages = {name: tensor for name, tensor in stages.items() if name.startswith("text.")}
    about["requests"] = []
    for i, request in enumerate(requests):
        of_request: dict[str, torch.Tensor] = {}
        generation = run_skill(model, tokenizer, cache, *request, capture=of_request, limits=limits)
        stages |= {f"request.{i}.{name}": tensor for name, tensor in of_request.items()}
        about["requests"].append(described(generation, request))
    kept: dict[str, torch.Tensor] = {}
    about["tensors"] = {}
    for name, tensor in sorted(stages.items()):
        rows, about["tensors"][name] = thinned(tensor.cpu(), max_rows)
        kept[name] = rows if rows.dtype == torch.uint8 else rows.float()
    save_file(kept, str(out.with_suffix(".safetensors")))
    out.with_suffix(".safetensors").chmod(0o644)
    out.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{out}: {len(kept)} tensors, {out.with_suffix('.safetensors').stat().st_size / 1e6:.2f} MB")
