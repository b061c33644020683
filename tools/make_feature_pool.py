"""Encodes scenes once with a model's vision encoder, for tools/train.py --pool.

    python tools/make_feature_pool.py --model models/tiny --out pool --seed 3001 --images 3000

An image takes 0.8 MB.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.feature_pool import write_pool  # noqa: E402
from gapless_tools.training_model import TrainingModel  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True, help="of the scenes: none that a table is measured on")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--tiled-every", type=int, default=10, help="every so many images have several local crops")
    args = parser.parse_args()
    weights = {name: tensor.float() for name, tensor in load_file(args.model / "model.safetensors").items()}
    model = TrainingModel(load_config(args.model), weights, {}, compiled=False)
    write_pool(model, args.out, args.seed, args.images, args.tiled_every)


if __name__ == "__main__":
    main()
