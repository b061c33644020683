"""Writes tests/golden/moondream3 and moondream3_other: the oracle's stages and answers for a small Moondream 3, in float32.

    gapless random-model --arch moondream3-small --seed 7 --out DIR
    python tools/moondream3_goldens.py --model DIR --out tests/golden

The weights are random (the test makes them anew from the seed). moondream3_other has every option of numerics
(docs/published_weights.md) away from its default.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import MoondreamConfig, Numerics, load_config  # noqa: E402
from gapless_tools.goldens import Request, write_golden  # noqa: E402
from gapless_tools.reference_model import ReferenceModel  # noqa: E402
from gapless_tools.skills import Limits  # noqa: E402

TINY = Path(__file__).parents[1] / "tests" / "golden" / "tiny"
TOKENIZER = Path(__file__).parents[1] / "models" / "tiny" / "tokenizer.json"

# Random weights seldom say when to stop.
LIMITS = Limits(max_new_tokens=10, max_objects=3)
MAX_ROWS = 6
COUNT = ("query", "How many shapes are there?")
CASES: dict[str, tuple[list[str], list[Request]]] = {
    "single": (["single.png"], [COUNT, ("point", "shape"), ("detect", "circle"), ("caption", "short")]),
    "wide": (["wide.png"], [("detect", "shape"), ("caption", "normal")]),
    "text_only": ([], [("query", "What can you do?")]),
    "pair": (["single.png", "tall.png"], [COUNT]),
}
OTHER_CASES: dict[str, tuple[list[str], list[Request]]] = {
    "tall": (["tall.png"], [COUNT, ("point", "shape"), ("detect", "circle")]),
}
OTHER = Numerics(tau_gelu="erf", tau_position="f32", coord_divisor="num_bins", region_input="post_norm")


def write_cases(
    folder: Path, config: MoondreamConfig, out: Path, cases: dict[str, tuple[list[str], list[Request]]]
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model = ReferenceModel.load(folder, config)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    notes = {"dtype": "float32", "max_new_tokens": LIMITS.max_new_tokens, "max_objects": LIMITS.max_objects}
    for name, (images, requests) in cases.items():
        write_golden(model, tokenizer, [TINY / i for i in images], requests, out / name, MAX_ROWS, notes, LIMITS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = load_config(args.model)
    write_cases(args.model, config, args.out / "moondream3", CASES)
    config.numerics = OTHER
    write_cases(args.model, config, args.out / "moondream3_other", OTHER_CASES)


if __name__ == "__main__":
    main()
