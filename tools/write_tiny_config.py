"""Writes config.json of models/tiny: Moondream 2 in small, its templates spelt with its own tokenizer.

    python tools/write_tiny_config.py --folder models/tiny
    python tools/write_tiny_config.py --folder models/tiny3 --tokenizer-from models/tiny

With --tokenizer-from it is Moondream 3 in small, and tokenizer.json is written too: the other folder's, with tokens that
only answers and prompts have, so that text has the ids that it had.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.outlines import PATH_NUMBERS  # noqa: E402

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


def with_path_tokens(tokenizer: dict) -> dict:
    """A tokenizer.json with a token for " segment" and one for each of a path's numbers that has none. No merge leads to
    them, so no text is encoded with them."""
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    for text in ("\u0120segment", *map(str, PATH_NUMBERS)):
        if text not in vocab:
            vocab[text] = max(vocab.values()) + 1
    return tokenizer


def tiny3_config(tokenizer: Tokenizer) -> dict:
    config = tiny_config(tokenizer)
    moe = {"num_experts": 16, "start_layer": 4, "experts_per_token": 4, "expert_inner_dim": 256}
    config["text"] |= {"moe": moe, "tau_attn": True}
    del config["region"]["inner_dim"]
    config["region"] |= {"decoder_arch": "linear", "use_ln": True}
    segment = tokenizer.token_to_id("\u0120segment")
    config["tokenizer"]["spellings"][str(segment)] = " segment"
    config["tokenizer"]["gaze"] = False
    templates = config["tokenizer"]["templates"]
    templates["query"] |= {"suffix": [3], "reasoning": [4]}
    templates["segment"] = {"prefix": [1, segment, 2], "suffix": [3]}
    return config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="holds tokenizer.json, receives config.json")
    parser.add_argument("--tokenizer-from", type=Path, help="folder with a tokenizer.json to add path tokens to")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    file = args.folder / "tokenizer.json"
    if args.tokenizer_from:
        extended = with_path_tokens(json.loads((args.tokenizer_from / "tokenizer.json").read_text()))
        file.write_text(json.dumps(extended, indent=2, ensure_ascii=False))
    tokenizer = Tokenizer.from_file(str(file))
    config = tiny3_config(tokenizer) if args.tokenizer_from else tiny_config(tokenizer)
    (args.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
