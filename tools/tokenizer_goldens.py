"""Makes tests/golden/tokenizer/: small tokenizers of several builds, and what Hugging Face's `tokenizers` makes of texts.

    pip install tokenizers
    python tools/tokenizer_goldens.py
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("<|endoftext|>", "<|separator_1|>", "<|separator_2|>", "<|coord|>")

CORPUS = (
    "What colour is the circle? The circle is red. How many squares are there? There are three squares.",
    "Read the number: 2024, 17, 365. Which bar is the highest? The fourth bar isn't, it's the second one.",
    "I'll describe this image: we've a green triangle, a yellow star and they're on a dark background.",
    "Die größte Straße heißt Königsallee; für Bäume und Blumen. Où est le café? El niño comió piñas.",
    "日本語のテキスト、漢字とひらがな。中文文本也可以。한국어 문장도 있습니다. Привет, мир! שלום عالم",
    "def main():\n    for i in range(10):\n\t\tprint(i)\n\n\nif x == 1:   return None\r\n",
    "🙂 😀 🎉 🏳️‍🌈 👩‍👩‍👧‍👦 ❤️ 👍🏽",
)

# Texts with a reason: each line is one.
TEXTS = (
    "",
    " ",
    "   ",
    "a",
    "What colour is the circle?",
    " What colour is the circle?",
    "  two  spaces   three    four     five",
    "trailing spaces   ",
    "tabs\tand\t\ttabs \t mixed",
    "one\ntwo\n\nthree\n\n\nfour\r\nfive\rsix",
    " \n \n\n x",
    "I'm you're he'll we've they'd it's isn't I'D 'S 'tis o'clock ''s",
    "it\u2019s curly",
    "0 1 12 123 1234 12345 3.14159 1,000,000 2024-11-21 10:30 x2y3",
    "\u00bd \u00b2 \u2167 \u0663\u0664 \u0e53 \u2460",
    "caf\u00e9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m A\u030a",
    "Die gr\u00f6\u00dfte Stra\u00dfe hei\u00dft K\u00f6nigsallee",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u6f22\u5b57\u3068\u3072\u3089\u304c\u306a\u3002",
    "\u4e2d\u6587 \u6587\u672c\u3000\u5168\u89d2\u7a7a\u683c",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\ub3c4 \uc788\uc2b5\ub2c8\ub2e4",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644\u0645",
    "\U0001f642\U0001f600 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f",
    "\U00010348 \U0001d54f \U00020000 \U0010fffd",
    "zero\u200bwidth\u200djoiner\ufeffbom",
    "nbsp\u00a0and\u2003em\u2009thin\u3000wide\u1680ogham\u205fmath",
    "next\u0085line\u2028sep\u2029para\u180emongolian\u001funit\u000bvt\u000cff",
    "\x00\x01\x7f\x80",
    "<|endoftext|>",
    "a<|endoftext|>b <|separator_1|> c<|separator_1|><|separator_2|>",
    "<|endoftext <|coord|> |> <|coord",
    "query<|endoftext|>   code    and     more",
    "{\"a\": [1, 2.5, null], 'b': \"c\\n\"} // $x = y*z; <b>&amp;</b>",
    "https://example.org/a_b-c?d=e&f=%20#g user@host.tld",
    "----====****____....!!!!????",
    "a-b--c---d -e- 1-2",
    "ThisIsCamelCase and snake_case_name SHOUTING",
    "x" * 300,
    " " * 100 + "y",
    "ab" * 150 + "\n" * 20,
)


# What NFC changes: composed, reordered, Hangul, singletons, and what it must leave apart.
COMPOSED = (
    "<think>re\u0301sume\u0301 <mark>r\u00e9sum\u00e9",
    "<think>\u0338 <mark>\u0338",  # '>' and the stroke through it are one character in NFC
    "q\u0307\u0323 a\u0323\u0302 \u1eb7 d\u0307\u0323",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud558\u11ab",
    "\u212b \u2126 \u00c5 \uf900 \u2adc \u0958 \u0344",
    "\u0301 leading \u0308\u0301",
    "e" + "\u0301" * 12 + "\u0323",
)


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    alphabets = (
        "abcdefgh ", "ABC'sdtm ", "0123456789 .,", " \t\n\r", "!?<|>-_'\"", "äöüßéñø ", "日本語漢字テスト。", "한국어",
        "Приветмир ", "🙂😀🎉👍❤", "\u00a0\u2003\u3000\u0085\u200b\u200d", "\u0301\u0308\u0302", "²½Ⅷ٣๓",
    )
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 8)):
            alphabet = rng.choice(alphabets)
            parts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 8))))
        texts.append("".join(parts))
    return texts


def train(pre_tokenizer, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(name, special=True) for name in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def gpt2_style() -> dict:
    """GPT-2's own rules, runs of spaces as added tokens (as code models have), merges as pairs."""
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 420)
    tokenizer.add_tokens([AddedToken(" " * n, special=False, normalized=n % 2 == 0) for n in range(2, 6)])
    return json.loads(tokenizer.to_str())


def split_style() -> dict:
    """A later fashion: Split with its own expression, ByteLevel without, ignore_merges, merges as strings."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer = train(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        420,
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    document = json.loads(tokenizer.to_str())
    document["model"]["ignore_merges"] = True
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    # A word that is in the vocabulary, and that the merges alone do not make.
    document["model"]["vocab"]["\u0120xyzzy"] = len(document["model"]["vocab"])
    return document


def qwen_style() -> dict:
    """NFC first, digits one by one, and added tokens that are not special: one matched before NFC, one after."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    tokenizer = train(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        380,
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(
        [AddedToken("<think>", special=False, normalized=False), AddedToken("<mark>", special=False, normalized=True)]
    )
    return json.loads(tokenizer.to_str())


def steps_style() -> dict:
    """Several steps: digits one by one, dashes removed, a space in front of each piece."""
    tokenizer = train(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.Split("-", behavior="removed", invert=False),
                pre_tokenizers.Split(Regex(r"[\r\n]*"), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
            ]
        ),
        380,
    )
    return json.loads(tokenizer.to_str())


def without_special(document: dict) -> Tokenizer:
    """The same tokenizer for which special tokens are ordinary text."""
    document = copy.deepcopy(document)
    document["added_tokens"] = [token for token in document["added_tokens"] if not token["special"]]
    return Tokenizer.from_str(json.dumps(document))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests/golden/tokenizer")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = list(TEXTS) + list(COMPOSED) + ["an xyzzy xyzzy"] + random_texts(80, seed=7)
    cases = []
    for style in (gpt2_style, split_style, qwen_style, steps_style):
        document = style()
        name = style.__name__ + ".json"
        (args.out / name).write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
        as_tokens, as_text = Tokenizer.from_str(json.dumps(document)), without_special(document)
        for text in texts:
            ids = as_tokens.encode(text).ids
            cases.append(
                {
                    "tokenizer": name,
                    "text": text,
                    "as_tokens": ids,
                    "as_text": as_text.encode(text).ids,
                    "decoded": as_tokens.decode(ids, skip_special_tokens=False),
                    "decoded_without_special": as_tokens.decode(ids, skip_special_tokens=True),
                }
            )
    goldens = {"made_with": f"tokenizers {tokenizers.__version__}", "cases": cases}
    (args.out / "goldens.json").write_text(json.dumps(goldens, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    print(f"{args.out}: {len(cases)} cases")


if __name__ == "__main__":
    main()
