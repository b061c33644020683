"""Draws the example pictures that ship beside models/tiny: scenes of a seed that training did not use.

    python tools/make_examples.py --out models/tiny/examples
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.scenes import make_scene  # noqa: E402

SEED = 4242
# File name, index of the scene, whether it is drawn large enough for several local crops.
EXAMPLES = (("shapes.png", 142, True), ("chart.jpg", 144, True), ("small.png", 7, False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, index, tiled in EXAMPLES:
        image, _ = make_scene(SEED, index, tiled=tiled)
        options = {"quality": 92} if name.endswith(".jpg") else {"optimize": True}
        image.save(args.out / name, **options)


if __name__ == "__main__":
    main()
