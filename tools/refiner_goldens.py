"""Writes tests/golden/refiner: a small refiner of random weights, and the oracle's stages of it, in float32.

python tools/refiner_goldens.py --out tests/golden/refiner

head.safetensors are the weights, for a vision encoder of 64 channels (random:moondream3-small has so many). stages.safetensors has the
inputs ("early", "final", "coarse"), every ROW_STRIDE-th row of each stage of the first round, and of the mask after all rounds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.refiner import picture_features, random_weights, refine, refine_rounds  # noqa: E402

ENCODER_DIM, DIM, GRID, SIDE, SEED = 64, 32, 27, 378, 7
# Odd, so that all columns of a picture are among the rows.
ROW_STRIDE = 53


def disc(side: int) -> torch.Tensor:
    at = torch.arange(side).float() - side / 2
    return ((at[:, None] + 20) ** 2 + (at[None, :] - 30) ** 2 < 90**2).float()


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    weights = random_weights(ENCODER_DIM, DIM, GRID, SEED)
    save_file({name: value.bfloat16() for name, value in weights.items()}, str(args.out / "head.safetensors"))
    generator = torch.Generator().manual_seed(SEED + 1)
    early, final = (torch.randn(GRID * GRID, ENCODER_DIM, generator=generator).bfloat16() for _ in range(2))
    mask = disc(SIDE)
    stages: dict[str, torch.Tensor] = {}
    features = picture_features(weights, early.float(), final.float())
    stages["features"] = features.flatten(1).T
    logits = refine(weights, features, mask, stages)
    stages["logits"] = logits.reshape(-1, 1)
    stages["rounds"] = refine_rounds(weights, features, mask).reshape(-1, 1)
    kept = {name: (x if x.shape[0] < ROW_STRIDE else x[::ROW_STRIDE]).contiguous() for name, x in stages.items()}
    kept |= {"early": early, "final": final, "coarse": mask.reshape(-1, 1).bfloat16()}
    save_file(kept, str(args.out / "stages.safetensors"))
    for file in args.out.glob("*.safetensors"):
        file.chmod(0o644)
        print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
