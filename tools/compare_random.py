"""Runs a full-shape checkpoint folder through the oracle and writes the same goldens as make_goldens.py.

    gapless random-model --arch moondream2 --seed 1 --out random-md2
    python tools/compare_random.py --checkpoint random-md2 --image a.png --image b.png --out goldens --device cuda

The folder holds model.safetensors in the published naming and, if its shape is not Moondream 2's, config.json. Weights
are cast to --dtype (float32 by default: the checkpoint's bfloat16 values, exact maths). --tokenizer defaults to the
shipped one, whose ids all exist in the larger vocabulary; the prompts' template ids are those of the folder's config.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools import skills  # noqa: E402
from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.goldens import write_golden  # noqa: E402
from gapless_tools.reference_model import ReferenceModel  # noqa: E402

SHIPPED_TOKENIZER = Path(__file__).parents[1] / "models" / "tiny" / "tokenizer.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--file", default="model.safetensors", help="name of the weights file in the folder")
    parser.add_argument("--tokenizer", type=Path, default=SHIPPED_TOKENIZER)
    parser.add_argument("--image", type=Path, action="append", required=True)
    parser.add_argument("--question", default="How many shapes are there?")
    parser.add_argument("--object", default="shape")
    parser.add_argument("--max-new-tokens", type=int, default=16, help="random weights seldom say when to stop")
    parser.add_argument("--max-objects", type=int, default=4)
    parser.add_argument("--max-rows", type=int, default=24, help="rows kept of a tensor")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    args.out.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, args.dtype)
    model = ReferenceModel.load(args.checkpoint, load_config(args.checkpoint), args.device, dtype, args.file)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    limits = skills.Limits(args.max_new_tokens, args.max_objects)
    requests = [("query", args.question), ("detect", args.object), ("point", args.object)]
    for image in args.image:
        notes = {"dtype": args.dtype, "max_new_tokens": args.max_new_tokens, "max_objects": args.max_objects}
        write_golden(model, tokenizer, [image], requests, args.out / image.stem, args.max_rows, notes, limits)


if __name__ == "__main__":
    main()
