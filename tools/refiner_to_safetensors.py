"""Turns the published refiner of segments (a PyTorch file) into the safetensors file that --refiner takes.

python tools/refiner_to_safetensors.py model.pt refiner.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    # Tensors alone: a file of anything else is refused.
    stored = torch.load(args.source, map_location="cpu", weights_only=True)
    if not isinstance(stored, dict) or "head" not in stored:
        parser.error(f"{args.source}: has no 'head'")
    save_file({name: tensor.contiguous() for name, tensor in stored["head"].items()}, str(args.out))
    print(f"{args.out}: {len(stored['head'])} tensors")


if __name__ == "__main__":
    main()
