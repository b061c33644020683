"""Which targets the quality table holds a model to."""

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import score_heldout  # noqa: E402

BOX = {"x_min": 0.1, "y_min": 0.1, "x_max": 0.3, "y_max": 0.3}


def question(number: int, reasons: bool) -> dict:
    category = "count_reasoned" if reasons else "count"
    return {"id": f"{category}-{number}", "skill": "query", "category": category, "truth": {"answer": "2", "boxes": []}}


def table(found: list[tuple[dict, dict]], *arguments: str) -> tuple[int, str]:
    """The exit code and the table of items and their responses."""
    with tempfile.TemporaryDirectory() as folder:
        items, responses = Path(folder) / "items.jsonl", Path(folder) / "responses.jsonl"
        items.write_text("".join(json.dumps(item) + "\n" for item, _ in found))
        responses.write_text("".join(json.dumps({"id": item["id"]} | said) + "\n" for item, said in found))
        command = ["score_heldout.py", "--items", str(items), "--responses", str(responses), *arguments]
        said = io.StringIO()
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(said):
            return score_heldout.main(), said.getvalue()


class Targets(unittest.TestCase):
    def counts(self, right: int, right_reasoned: int) -> list[tuple[dict, dict]]:
        """Answers to ten questions, without reasoning and with it."""
        plain = [(question(i, False), {"answer": "2" if i < right else "3"}) for i in range(10)]
        return plain + [(question(i, True), {"answer": "2" if i < right_reasoned else "3"}) for i in range(10)]

    def test_counting_with_reasoning_is_held_to_counting_without(self) -> None:
        self.assertEqual(table(self.counts(9, 9))[0], 0)
        code, said = table(self.counts(10, 9))
        self.assertEqual(code, 1)
        self.assertIn("| counting with reasoning, exact | 10 | 0.900 | 1.000 |", said)

    def test_a_model_may_have_one_of_its_own(self) -> None:
        item = {"skill": "detect", "category": "present", "truth": {"boxes": [list(BOX.values())]}}
        found = [(item | {"id": str(i)}, {"objects": [BOX] if i < 8 else []}) for i in range(9)]  # F1 16/17
        self.assertEqual(table(found)[0], 0)
        self.assertEqual(table(found, "--model", "models/tiny")[0], 0)
        code, said = table(found, "--model", "models/tiny3")
        self.assertEqual(code, 1)
        self.assertIn("| 0.941 | 0.95 |", said)


if __name__ == "__main__":
    unittest.main()
