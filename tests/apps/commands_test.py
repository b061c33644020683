"""What the commands print and how they end, with the model that ships: GAPLESS_BINARY names the binary."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "models/tiny/examples/shapes.png"
QUESTION = ("run", "query", "--device", "cpu", "--question", "How many stars are there?", "--image", str(PICTURE))


def gapless(*arguments):
    return subprocess.run([os.environ["GAPLESS_BINARY"], *arguments], capture_output=True, text=True, timeout=120)


class CommandsTest(unittest.TestCase):
    def answer(self, *arguments):
        done = gapless(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_errors(self):
        for arguments, named in [
            (("info", "--model", "/no/such/model"), "/no/such/model"),
            (("run", "query", "--question", "why?", "--image", "/no/such.png"), "/no/such.png"),
            (("run", "query"), "--question"),
            (("run", "detect", "--image", str(PICTURE)), "--object"),
            (("random-model", "--arch", "none", "--out", "/tmp"), "none"),
        ]:
            failed = gapless(*arguments)
            self.assertEqual(failed.returncode, 1, arguments)
            self.assertEqual(failed.stdout, "")
            self.assertTrue(failed.stderr.strip().startswith("gapless: "), failed.stderr)
            self.assertIn(named, failed.stderr)

    def test_info(self):
        text = self.answer("info", "--rows", "3", "--context", "77")
        self.assertIn("3 rows, 77 cached tokens each", text)

    def test_run(self):
        plain = self.answer(*QUESTION).strip()
        whole = json.loads(self.answer(*QUESTION, "--json"))
        self.assertEqual(whole["answer"], plain)
        self.assertEqual(whole["finish_reason"], "stop")
        caption = ("run", "caption", "--device", "cpu", "--json", "--image", str(PICTURE))
        short = json.loads(self.answer(*caption, "--max-tokens", "2"))
        self.assertEqual((short["metrics"]["output_tokens"], short["finish_reason"]), (2, "length"))

    def test_stream(self):
        plain = self.answer(*QUESTION)
        self.assertNotEqual(plain.strip(), "")
        self.assertEqual(self.answer(*QUESTION, "--stream"), plain)

    def test_annotate(self):
        detect = ("run", "detect", "--device", "cpu", "--object", "circle", "--image", str(PICTURE))
        with tempfile.TemporaryDirectory() as folder:
            marked = Path(folder) / "marked.png"
            boxes = json.loads(self.answer(*detect, "--json", "--annotate", str(marked)))["objects"]
            self.assertTrue(marked.read_bytes().startswith(b"\x89PNG"))
            self.assertNotEqual(marked.read_bytes(), PICTURE.read_bytes())
        lines = self.answer(*detect, "--host-masks").split("\n")
        self.assertEqual(len([line for line in lines if len(line.split()) == 4]), len(boxes))


if __name__ == "__main__":
    unittest.main()
