#!/usr/bin/env python3
"""Writes a checkpoint into a model's folder without what another model's file in the tree has already.

    python tools/share_tensors.py --checkpoint run/checkpoint.safetensors --model models/tiny3 --shared models/tiny

Tensors that are the same in both stay in the other model's file: a link to it and own.safetensors are the shards that
model.safetensors.index.json names.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

OWN = "own.safetensors"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder that gets the files")
    parser.add_argument("--shared", type=Path, required=True, help="folder of the other model")
    options = parser.parse_args(arguments)
    link = options.model / f"{options.shared.name}.safetensors"
    weights, others = load_file(options.checkpoint), load_file(options.shared / "model.safetensors")
    same = {name for name, tensor in weights.items()
            if name in others and others[name].dtype == tensor.dtype and torch.equal(others[name], tensor)}
    save_file({name: tensor for name, tensor in weights.items() if name not in same}, options.model / OWN)
    files = {name: link.name if name in same else OWN for name in sorted(weights)}
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in weights.values())}, "weight_map": files}
    (options.model / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(options.shared / "model.safetensors", options.model))
    print(f"{len(same)} of {len(weights)} tensors are shared; {OWN} has {(options.model / OWN).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
