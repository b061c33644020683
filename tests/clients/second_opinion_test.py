"""llguidance's legal tokens beside ours: what it allows is allowed here too.

llguidance writes an object's members in the schema's order and, as it is asked to here, no whitespace; ours takes any order and lets
whitespace be. So its sets are smaller, and the other direction cannot be compared. Paths are drawn at random from its sets, in many
schemas: of each kind of keyword at random, and those of MaskBench's sample where that lies beside the checkout.
"""

import gzip
import json
import os
import random
import re
import subprocess
import unittest
from pathlib import Path

import llguidance

from random_schemas import random_schema

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "models" / "tiny" / "tokenizer.json"
SHARED = Path(os.environ.get("GAPLESS_SHARED", ROOT.parent / "shared")) / "data" / "maskbench_sample.jsonl.gz"
MAX_TOKENS = 60
EOS = "<|endoftext|>"


def bits_of(mask: bytes) -> int:
    return int.from_bytes(mask, "little")


def bits_of_hex(text: str) -> int:
    return int(text[::-1], 16)


def tokens_of(bits: int) -> list[int]:
    return [i for i in range(bits.bit_length()) if bits >> i & 1]


def is_held_in_another_spelling(text: bytes, token: bytes) -> bool:
    """What ours leaves out and says so (docs/constraints.md, src/grammar/json_grammar.h), or what is none of the format's."""
    minus_zero = text.endswith(b"-") and token.startswith(b"0")  # of a number with bounds
    numbered_escape = text.endswith(b"\\") and token.startswith(b"u")  # where the characters matter, as in names
    leap_second = re.search(rb":[0-5][0-9]:$", text) is not None and token.startswith(b"6")  # at 23:59 alone
    return minus_zero or numbered_escape or leap_second


class Theirs:
    """A path of tokens drawn from llguidance's legal ones, and those before each of them and behind the last."""

    def __init__(self, tokenizer, schema, rng):
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_flexible": False})
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        eos = 1 << tokenizer.eos_token
        self.tokens, self.masks, self.may_end = [], [], False
        while True:
            bits = bits_of(matcher.compute_bitmask())
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            self.may_end = bool(bits & eos)
            self.masks.append(bits & ~eos)
            legal = tokens_of(bits & ~eos)
            if not legal or len(self.tokens) == MAX_TOKENS:
                return
            token = rng.choice(legal)
            if not matcher.consume_token(token):
                raise ValueError(matcher.get_error())
            self.tokens.append(token)
            if matcher.is_stopped():
                self.masks.append(0)
                self.may_end = True
                return


class SecondOpinion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = TOKENIZER.read_text(encoding="utf-8")
        cls.tokenizer = llguidance.LLTokenizer(str(TOKENIZER), eos_token=cls.eos_id(text))
        cls.texts = [cls.tokenizer.decode_bytes([i]) for i in range(cls.tokenizer.vocab_size)]

    @staticmethod
    def eos_id(text):
        return next(t["id"] for t in json.loads(text)["added_tokens"] if t["content"] == EOS)

    def compare(self, schemas, paths_of_each):
        """Returns how many schemas, and how many sets, were compared."""
        rng = random.Random(7)
        questions, theirs = [], []
        for schema in schemas:
            for _ in range(paths_of_each):
                try:
                    path = Theirs(self.tokenizer, schema, rng)
                except ValueError:
                    break  # it does not hold this schema
                theirs.append((schema, path))
                questions.append(json.dumps({"schema": schema, "tokens": path.tokens}))
        answers = subprocess.run(
            [os.environ["LEGAL_TOKENS"], str(TOKENIZER)], input="\n".join(questions) + "\n",
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        self.assertEqual(len(answers), len(questions))
        held, num_sets, missing = set(), 0, []
        for (schema, path), line in zip(theirs, answers, strict=True):
            ours = json.loads(line)
            if "refused" in ours:
                continue  # named by its keyword; what is held is compared
            held.add(json.dumps(schema))
            for at, (bits, mask) in enumerate(zip(path.masks, ours["masks"], strict=False)):
                num_sets += 1
                text = b"".join(self.texts[t] for t in path.tokens[:at])
                lost = [self.texts[t] for t in tokens_of(bits & ~bits_of_hex(mask))]
                lost = [token for token in lost if not is_held_in_another_spelling(text, token)]
                if lost:
                    missing.append((schema, text, lost[:8]))
                    break
            else:
                if ours["taken"] == len(path.tokens) and path.may_end and not ours["may_end"]:
                    missing.append((schema, b"".join(self.texts[t] for t in path.tokens), "the end"))
        report = "\n".join(f"{text!r} then {lost} of {json.dumps(schema)[:300]}" for schema, text, lost in missing[:20])
        self.assertFalse(missing, f"{len(missing)} of {len(theirs)} paths meet tokens that are refused here:\n{report}")
        return len(held), num_sets

    def test_random_schemas(self):
        rng = random.Random(20)
        num_schemas, num_sets = self.compare([random_schema(rng) for _ in range(150)], 2)
        self.assertGreater(num_schemas, 100)
        self.assertGreater(num_sets, 2000)

    def test_maskbench(self):
        if not SHARED.exists():
            self.skipTest(f"{SHARED} is not here")
        with gzip.open(SHARED, "rt", encoding="utf-8") as lines:
            schemas = [json.loads(line)["schema"] for line in lines][::4]
        num_schemas, num_sets = self.compare(schemas, 1)
        self.assertGreater(num_schemas, len(schemas) // 2)
        self.assertGreater(num_sets, 5000)


if __name__ == "__main__":
    unittest.main()
