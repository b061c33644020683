"""Writes tests/golden/tiny3: the oracle's stages and answers for models/tiny3, in float32, about tests/golden/tiny's images.

    python tools/tiny3_goldens.py --model models/tiny3 --out tests/golden/tiny3
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.goldens import Request, write_golden  # noqa: E402
from gapless_tools.reference_model import ReferenceModel  # noqa: E402

TINY = Path(__file__).parents[1] / "tests" / "golden" / "tiny"
MAX_ROWS = 12
COUNT = "How many shapes are there?"
CASES: dict[str, tuple[list[str], list[Request]]] = {
    "single": (
        ["single.png"],
        [
            ("query", COUNT),
            ("query", COUNT, True),
            ("point", "shape"),
            ("detect", "shape"),
            ("segment", "blue square"),
            ("caption", "short"),
        ],
    ),
    "wide": (["wide.png"], [("query", COUNT, True), ("detect", "shape"), ("segment", "triangle")]),
    "text_only": ([], [("query", "What can you do?")]),
    "pair": (["single.png", "tall.png"], [("query", COUNT)]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = ReferenceModel.load(args.model, load_config(args.model))
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    for name, (images, requests) in CASES.items():
        paths = [TINY / image for image in images]
        write_golden(model, tokenizer, paths, requests, args.out / name, MAX_ROWS, {"dtype": "float32"})


if __name__ == "__main__":
    main()
