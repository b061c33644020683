"""Trains the region heads of a checkpoint alone, when the rest of it is done.

    python tools/fit_region_heads.py --model models/tiny3 --init run/checkpoint.safetensors --pool pool --out model.safetensors
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.feature_pool import PooledBatches  # noqa: E402
from gapless_tools.reference_model import ReferenceModel  # noqa: E402
from gapless_tools.region_fit import fit_region_heads  # noqa: E402
from gapless_tools.training_model import TrainingModel  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json and tokenizer.json")
    parser.add_argument("--init", type=Path, required=True)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--batches", type=int, default=150, help="of 2 images, to look at hidden states")
    args = parser.parse_args()
    config = load_config(args.model)
    weights = {name: tensor.float() for name, tensor in load_file(args.init).items()}
    model = TrainingModel(config, weights, {}, compiled=False)
    batches = PooledBatches(config, str(args.model / "tokenizer.json"), args.pool, args.seed, 2, 512)
    states = []
    for _, batch in zip(range(args.batches), batches):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            states.append((model.forward(batch)["hidden"].float(), batch))
    fit_region_heads(weights, config, states, torch.Generator().manual_seed(args.seed))
    ReferenceModel(config, weights).save(args.out)


if __name__ == "__main__":
    main()
