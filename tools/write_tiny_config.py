"""Writes config.json of models/tiny: Moondream 2 in small, its templates spelt with its own tokenizer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Tokenizer


PROMPT_WORDS = [" caption", " short", " normal", " long", " query", " detect", " point"]


def tiny_config(tokenizer: Tokenizer) -> dict:
    def word(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    # What tells this tokenizer.json from another one: its size, the special tokens, the words of the prompts.
    named = list(range(10)) + [id for text in PROMPT_WORDS for id in word(text)]
    return {
        "gapless": {"format": 1},
        "text": {
            "dim": 256,
            "ff_dim": 1024,
            "n_layers": 6,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_context": 2048,
            "n_heads": 4,
            "n_kv_heads": 4,
            "prefix_attn": 730,
            "rope_theta": 10000,
        },
        "vision": {
            "enc_dim": 288,
            "enc_patch_size": 14,
            "enc_n_layers": 4,
            "enc_ff_dim": 1152,
            "enc_n_heads": 4,
            "proj_out_dim": 256,
            "crop_size": 378,
            "in_channels": 3,
            "max_crops": 12,
            "overlap_margin": 4,
            "proj_inner_dim": 768,
        },
        "region": {
            "dim": 256,
            "coord_feat_dim": 256,
            "coord_out_dim": 1024,
            "size_feat_dim": 512,
            "size_out_dim": 2048,
            "inner_dim": 512,
        },
        "tokenizer": {
            "bos_id": 0,
            "eos_id": 0,
            "answer_id": 3,
            "thinking_id": 4,
            "coord_id": 5,
            "size_id": 6,
            "start_ground_points_id": 7,
            "end_ground_id": 9,
            "vocab_size": tokenizer.get_vocab_size(),
            "spellings": {str(id): tokenizer.id_to_token(id).replace("Ġ", " ") for id in named},
            "templates": {
                "caption": {
                    length: [1, *word(" caption"), 2, *word(" " + length), 3] for length in ("short", "normal", "long")
                },
                "query": {"prefix": [1, *word(" query"), 2], "suffix": [3, 3]},
                "detect": {"prefix": [1, *word(" detect"), 2], "suffix": [3]},
                "point": {"prefix": [1, *word(" point"), 2], "suffix": [3]},
            },
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="holds tokenizer.json, receives config.json")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    (args.folder / "config.json").write_text(json.dumps(tiny_config(tokenizer), indent=2) + "\n")


if __name__ == "__main__":
    main()
