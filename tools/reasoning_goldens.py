"""Writes tests/golden/reasoning: the oracle's reasoning and answers of a small Moondream 3 of random weights, in float32.

    gapless random-model --arch moondream3-small --seed 7 --out DIR
    python tools/reasoning_goldens.py --model DIR --out tests/golden/reasoning

Random weights seldom point and seldom end, so biases on a few tokens make them. `denied` are tokens that are never sampled
while it reasons, as in Moondream 2's templates.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.reasoning import ReasoningLimits, generate_reasoning  # noqa: E402
from gapless_tools.reference_model import ReferenceModel  # noqa: E402
from gapless_tools.skills import encode_images  # noqa: E402

ROOT = Path(__file__).parents[1]
MAX_TOKENS = 24
# (image or none, question, biases by token)
REQUESTS: list[tuple[str, str, dict[int, float]]] = [
    ("single.png", "How many shapes are there?", {}),
    ("single.png", "How many shapes are there?", {5: 6.0, 7: 5.0, 9: 5.0, 3: 4.0}),
    ("wide.png", "Where is the circle?", {5: 7.0, 9: 6.5, 3: 6.0}),
    ("", "What can you do?", {5: 7.5, 7: 7.0, 6: 7.0, 0: 5.0}),
    ("single.png", "Why?", {3: 100.0}),
    ("wide.png", "Where?", {5: 8.0, 7: 8.0, 9: 8.5, 3: 8.0, 0: 7.0}),
    ("", "And why?", {5: 7.0, 7: 6.5, 9: 6.0, 3: 6.5, 0: 6.5}),
]
VARIANTS: list[dict[str, Any]] = [
    {"answer_feed": "once", "denied": []},
    {"answer_feed": "twice", "denied": []},
    {"answer_feed": "twice", "denied": [0, 6]},
]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    config = load_config(args.model)
    model = ReferenceModel.load(args.model, config)
    tokenizer = Tokenizer.from_file(str(ROOT / "models/tiny/tokenizer.json"))
    caches = {}
    for image in {image for image, _, _ in REQUESTS}:
        pictures = [Image.open(ROOT / "tests/golden/tiny" / image).convert("RGB")] if image else []
        caches[image] = encode_images(model, pictures)
    cases = []
    for variant in VARIANTS:
        config.numerics.answer_feed = variant["answer_feed"]
        config.tokenizer.templates["query"]["reasoning_denied"] = variant["denied"]
        answers = []
        for image, question, bias in REQUESTS:
            limits = ReasoningLimits(MAX_TOKENS, MAX_TOKENS)
            one = generate_reasoning(model, tokenizer, caches[image], question, limits, bias)
            answers.append({"image": image, "question": question, "bias": [[t, b] for t, b in bias.items()], **vars(one)})
        cases.append({**variant, "requests": answers})
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "reasoning.json").write_text(json.dumps({"max_tokens": MAX_TOKENS, "variants": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
