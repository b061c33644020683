"""The shipped tokenizer: reserved ids, round trips, templates."""

import json
import sys
import unittest
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from train_tokenizer import RESERVED  # noqa: E402
from write_tiny_config import tiny_config  # noqa: E402

MODEL = Path(__file__).parents[2] / "models" / "tiny"


class ShippedTokenizer(unittest.TestCase):
    def setUp(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))

    def test_reserved_ids(self) -> None:
        self.assertEqual([self.tokenizer.token_to_id(name) for name in RESERVED], list(range(10)))

    def test_any_text_comes_back(self) -> None:
        for text in (
            "a red circle",
            " leading",
            "日本語 😀👍🏽",
            "line\nbreak\t7",
            "\x00\x7f",
            "".join(map(chr, range(32, 1000))),
        ):
            ids = self.tokenizer.encode(text).ids
            self.assertGreater(min(ids), 9)
            self.assertEqual(self.tokenizer.decode(ids), text)

    def test_templates_use_known_ids(self) -> None:
        config = json.loads((MODEL / "config.json").read_text())
        self.assertEqual(config["text"]["vocab_size"], self.tokenizer.get_vocab_size())
        templates = config["tokenizer"]["templates"]
        self.assertEqual(templates["query"]["prefix"], [1, *self.tokenizer.encode(" query").ids, 2])
        self.assertEqual(templates["query"]["suffix"], [3, 3])
        self.assertEqual(templates["detect"]["suffix"], [3])

    def test_the_shipped_config_is_the_one_that_is_written(self) -> None:
        self.assertEqual(json.loads((MODEL / "config.json").read_text()), tiny_config(self.tokenizer))


if __name__ == "__main__":
    unittest.main()
