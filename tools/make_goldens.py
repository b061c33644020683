"""Writes tests/golden/tiny: the oracle's stages and answers for the shipped model, in float32, and unit goldens.

python tools/make_goldens.py --model models/tiny --out tests/golden/tiny
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import VisionConfig, load_config  # noqa: E402
from gapless_tools.goldens import write_golden  # noqa: E402
from gapless_tools.image_crops import normalize, pool_windows  # noqa: E402
from gapless_tools.reference_model import ReferenceModel, coord_value, size_value  # noqa: E402
from gapless_tools.scenes import make_scene  # noqa: E402
from gapless_tools.tiling import tiling_of_image  # noqa: E402

SEED = 7

COUNT = ("query", "How many shapes are there?")
CASES = {
    "single": [COUNT, ("point", "shape"), ("detect", "shape"), ("caption", "short")],
    "wide": [COUNT, ("detect", "shape"), ("caption", "normal")],
    "tall": [("query", "What colour is the circle?"), ("detect", "shape"), ("point", "elephant"), ("caption", "long")],
}
# Image size of a case and whether the scene is drawn for several crops: tilings 1x1, 2x4 and 4x2.
SIZES = {"single": ((378, 378), False), "wide": ((640, 480), True), "tall": ((480, 640), True)}
TALK = [("query", "What can you do?")]
# Two images in one prompt.
PAIR = [COUNT, ("query", "What colour is the circle?")]

TILING_SIZES = [
    (378, 378), (379, 379), (800, 600), (600, 800), (1024, 768), (768, 1024), (1920, 1080), (1080, 1920), (300, 2000),
    (2000, 300), (4000, 3000), (3000, 4000), (640, 480), (480, 640), (1280, 720), (3840, 2160), (1000, 1000), (1, 1),
    (1, 5000), (379, 5000), (5000, 379), (500, 500), (900, 379), (7560, 644), (7561, 644), (8000, 600), (17682, 379),
    (378, 379), (645, 645), (911, 645), (50000, 50000),
]  # fmt: skip

TOKENIZER_TEXTS = [
    "", " ", "a", "What colour is the red circle?", " red circle", "red circle", "How many  blue   squares?", "42", " 42",
    "1234567890", "line one\nline two", "\n\n", "tab\there", "trailing space ", "   leading", "it's don't we'll I'd you've",
    "HELLO World", "naïve café", "Ünïcödé", "日本語のテキスト", "привет мир", "العربية", "emoji 😀👍🏽 done", "👩‍👩‍👧‍👦", "a\u0301",
    "\u00a0nbsp", "zero\u200bwidth", "x=1+2;y={3}", "<|endoftext|>", "say <|coord|> twice<|size|>", "!?.,;:", "mixed123abc",
    "\r\n", "…—“quotes”", "\x00\x01\x7f", "ǅ ª º ⅷ ² ½", "๑๒๓ ٣",
]  # fmt: skip


def find_scene(name: str) -> tuple[Image.Image, int]:
    """The first scene of the stream with the size and the number of items that a case wants."""
    size, tiled = SIZES[name]
    index = 0
    while True:
        image, scene = make_scene(SEED, index, tiled)
        kinds = [item.kind for item in scene.items]
        plain = scene.background != "noisy"  # noise does not compress
        if image.size == size and plain and len(kinds) in (4, 5) and not scene.is_chart and kinds.count("circle") == 1:
            return image, index
        index += 1


def write_units(folder: Path, tokenizer: Tokenizer) -> None:
    vision = VisionConfig()
    every_byte = torch.arange(256, dtype=torch.uint8)
    cases = []
    for text in TOKENIZER_TEXTS:
        ids = tokenizer.encode(text).ids
        with_special = tokenizer.decode(ids, skip_special_tokens=False)
        cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids), "with_special": with_special})
    units = {
        "tiling": [{"width": w, "height": h, "rows_cols": tiling_of_image(w, h, vision)} for w, h in TILING_SIZES],
        "pool_windows": {str(19 * t + 8): pool_windows(19 * t + 8, 27) for t in range(1, 14)},
        "normalize_bf16": normalize(every_byte, torch.bfloat16).tolist(),
        "normalize_f32": normalize(every_byte, torch.float32).tolist(),
        "coord_values": {str(i): coord_value(i) for i in (0, 1, 511, 512, 1022, 1023)},
        "size_values": {str(i): size_value(i) for i in (0, 1, 511, 512, 1022, 1023)},
        "tokenizer": cases,
    }
    (folder / "units.json").write_text(json.dumps(units, indent=1, ensure_ascii=True) + "\n")
    rng = np.random.default_rng(5)
    resizes = {}
    for i, (w, h, ow, oh) in enumerate(
        [(23, 17, 31, 40), (64, 48, 20, 15), (30, 50, 30, 20), (1, 9, 12, 12), (40, 40, 7, 90)]
    ):
        source = rng.integers(0, 256, size=(h, w, 3), dtype=np.uint8)
        resized = Image.fromarray(source).resize((ow, oh), Image.Resampling.LANCZOS)
        resizes |= {f"{i}.source": source, f"{i}.lanczos": np.asarray(resized)}
    save_file(resizes, str(folder / "resize.safetensors"))
    (folder / "resize.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = load_config(args.model)
    model = ReferenceModel.load(args.model, config)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    write_units(args.out, tokenizer)
    for name, requests in CASES.items():
        image, index = find_scene(name)
        path = args.out / f"{name}.png"
        image.save(path, optimize=True)
        notes = {"scene": {"seed": SEED, "index": index}, "dtype": "float32"}
        write_golden(model, tokenizer, [path], requests, args.out / name, 24, notes)
    write_golden(model, tokenizer, [], TALK, args.out / "text_only", 24, {"dtype": "float32"})
    pair = [args.out / "single.png", args.out / "tall.png"]
    write_golden(model, tokenizer, pair, PAIR, args.out / "pair", 24, {"dtype": "float32"})


if __name__ == "__main__":
    main()
