"""Writes tests/golden/moondream05b and moondream2_march: the oracle's stages and answers for small older Moondreams.

    gapless random-model --arch moondream-0.5b-small --seed 7 --out DIR/moondream05b
    gapless random-model --arch moondream2-march-small --seed 7 --out DIR/moondream2_march
    python tools/older_goldens.py --models DIR --out tests/golden

In float32. The weights are random (the test makes them anew from the seed).
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
from gapless_tools.skills import Limits  # noqa: E402

TINY = Path(__file__).parents[1] / "tests" / "golden" / "tiny"
TOKENIZER = Path(__file__).parents[1] / "models" / "tiny" / "tokenizer.json"

# Random weights seldom say when to stop.
LIMITS = Limits(max_new_tokens=10, max_objects=3)
MAX_ROWS = 6
COUNT = ("query", "How many shapes are there?")
REGIONS = [("point", "shape"), ("detect", "circle")]
CASES: dict[str, dict[str, tuple[list[str], list[Request]]]] = {
    "moondream05b": {
        "single": (["single.png"], [COUNT, *REGIONS, ("caption", "short")]),
        "wide": (["wide.png"], [("detect", "shape"), ("caption", "normal")]),
        "text_only": ([], [("query", "What can you do?")]),
    },
    "moondream2_march": {"wide": (["wide.png"], [COUNT, *REGIONS, ("caption", "long")])},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    notes = {"dtype": "float32", "max_new_tokens": LIMITS.max_new_tokens, "max_objects": LIMITS.max_objects}
    for which, cases in CASES.items():
        folder = args.models / which
        model = ReferenceModel.load(folder, load_config(folder))
        out = args.out / which
        out.mkdir(parents=True, exist_ok=True)
        for name, (images, requests) in cases.items():
            write_golden(model, tokenizer, [TINY / i for i in images], requests, out / name, MAX_ROWS, notes, LIMITS)


if __name__ == "__main__":
    main()
