#!/usr/bin/env python3
"""Writes weights between those of a model and those that further training made of it.

    python tools/mix_checkpoints.py --base models/tiny3 --share 0.8 --out mixed.safetensors second/checkpoint.safetensors third/checkpoint.safetensors

A tensor is (1 - share) times the base's plus `share` times the mean of the checkpoints', in float32, rounded once. What training of a
skill takes from the others is less in between than what it brings. A tensor that all have alike stays as it is.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.reference_model import load_weights  # noqa: E402


def mixed(base: torch.Tensor, trained: list[torch.Tensor], share: float) -> torch.Tensor:
    if all(torch.equal(tensor, base) for tensor in trained):
        return base
    mean = torch.stack([tensor.float() for tensor in trained]).mean(dim=0)
    return ((1 - share) * base.float() + share * mean).to(base.dtype)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="folder of the model that training began with")
    parser.add_argument("--share", type=float, required=True, help="of the checkpoints: 0 is the base, 1 their mean")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    base, trained = load_weights(options.base), [load_file(path) for path in options.checkpoints]
    for path, weights in zip(options.checkpoints, trained):
        if weights.keys() != base.keys():
            parser.error(f"{path} has other tensors than {options.base}")
    save_file({name: mixed(base[name], [w[name] for w in trained], options.share) for name in base}, options.out)


if __name__ == "__main__":
    main()
