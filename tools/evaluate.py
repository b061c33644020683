"""Answers held-out items with the reference model in float32 and writes responses.jsonl.

python tools/evaluate.py --model models/tiny --heldout heldout --out responses.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import load_config  # noqa: E402
from make_heldout import ARGUMENT_FIELD  # noqa: E402
from score_heldout import SIDES  # noqa: E402
from gapless_tools.reference_model import ReferenceModel  # noqa: E402
from gapless_tools.skills import Generation, encode_image, run_skill  # noqa: E402


def response_of(item: dict, generation: Generation) -> dict:
    response: dict = {"id": item["id"], "finish_reason": generation.finish_reason}
    if item["skill"] == "detect":
        return response | {"objects": [dict(zip(SIDES, box)) for box in generation.boxes]}
    if item["skill"] == "segment":
        return response | {"path": generation.text, "bbox": dict(zip(SIDES, generation.boxes[0]))}
    if item["skill"] == "point":
        return response | {"points": [{"x": x, "y": y} for x, y in generation.points]}
    if generation.reasoning is not None:
        parts = [{"start_idx": part.start, "end_idx": part.end, "points": part.points} for part in generation.grounding]
        response["reasoning"] = {"text": generation.reasoning, "grounding": parts}
    text = generation.text or ""  # a reasoning that ends the request has no answer behind it
    return response | {"answer" if item["skill"] == "query" else "caption": text}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = ReferenceModel.load(args.model, load_config(args.model), device=args.device)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    items = [json.loads(line) for line in (args.heldout / "items.jsonl").read_text().splitlines()]
    with args.out.open("w") as lines:
        for number, (name, group) in enumerate(itertools.groupby(items, key=lambda item: item["image"])):
            cache = encode_image(model, Image.open(args.heldout / name).convert("RGB"))
            for item in group:
                asked = (item["skill"], item[ARGUMENT_FIELD[item["skill"]]], item.get("reasoning", False))
                generation = run_skill(model, tokenizer, cache, *asked)
                lines.write(json.dumps(response_of(item, generation)) + "\n")
            if number % 20 == 19:
                print(f"{number + 1} images", flush=True)


if __name__ == "__main__":
    main()
