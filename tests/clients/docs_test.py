"""The examples of docs/http_api.md and README.md, run as they stand (on another port)."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from serving import ROOT, Server


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


class DocsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def run_here(self, command, text):
        done = subprocess.run([*command, text.replace("localhost:2020", self.server.url[7:])], cwd=ROOT,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def run_shell(self, text):
        return self.run_here(["bash", "-e", "-o", "pipefail", "-c"], text)

    def test_curl_examples(self):
        examples = blocks("docs/http_api.md", "sh")
        self.assertGreaterEqual(len(examples), 8)
        outputs = [self.run_shell(examples[0] + text) for text in examples]
        everything = "\n".join(outputs)
        self.assertNotIn('"error"', everything)
        for field in ("response", "models", "model_info", "answer", "caption", "objects", "points", "choices", "tokens", "data", "prompt", "version",
                      "max_depth", "usage"):
            self.assertIn(f'"{field}":', everything)
        self.assertIn('gapless_device_seconds_total{', everything)
        events = re.findall(r"^data: (.*)$", everything, re.MULTILINE)
        self.assertTrue(any(json.loads(event).get("completed") for event in events if event != "[DONE]"))
        self.assertIn("[DONE]", events)
        self.assertEqual(json.loads(self.server.get("/debug/timeline"))["depth"], 2)

    def test_error_examples_have_the_status_and_the_code_beside_them(self):
        example = next(text for text in blocks("docs/http_api.md", "sh") if text.startswith("status()"))
        expected = re.findall(r"# (\d+) (\w+)$", example, re.MULTILINE)
        self.assertGreaterEqual(len(expected), 6)
        statuses = self.run_shell(example).split()
        self.assertEqual(statuses, [status for status, _ in expected])
        bodies = self.run_shell(example.replace("-o /dev/null -w '%{http_code}\\n'", "-w '\\n'"))
        codes = [json.loads(body)["error"]["code"] for body in bodies.splitlines() if body]
        self.assertEqual(codes, [code for _, code in expected])

    def test_every_route_is_in_the_page(self):
        page = (ROOT / "docs/http_api.md").read_text()
        for source in (ROOT / "src/server").glob("*_api.cpp"):
            for path in re.findall(r'"(/[a-z_/]+)"', source.read_text()):
                if path not in ("/v1/", "/v1/health", "/healthz", "/v1/tokenize", "/v1/detokenize"):
                    self.assertIn(path, page, source.name)

    def test_readme_commands(self):
        """The console block: each command's output beneath it. Numbers may differ in their last places."""
        block = re.sub(r"^\$ gapless=.*\n", "", blocks("README.md", "console")[0], flags=re.MULTILINE)
        examples = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
        self.assertGreaterEqual(len(examples), 4)
        with tempfile.TemporaryDirectory() as folder:
            for command, expected in examples:
                with self.subTest(command):
                    output = self.run_command(command, folder)
                    self.assertEqual(len(output.splitlines()), len(expected.splitlines()), output)
                    for word, wanted in zip(output.split(), expected.split()):
                        if re.fullmatch(r"0\.\d+", wanted):
                            self.assertAlmostEqual(float(word), float(wanted), delta=0.01)
                        else:
                            self.assertEqual(word, wanted)
            self.assertEqual((Path(folder) / "out.png").read_bytes()[1:4], b"PNG")

    def test_readme_other_commands(self):
        """Those without an output that run to their end; serving and measuring have tests of their own."""
        lines = re.findall(r"^    \$gapless (.*?)(?:  +#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
        ran = 0
        with tempfile.TemporaryDirectory() as folder:
            request = {"skill": "query", "question": "How many circles are there?",
                       "image": str(ROOT / "models/tiny/examples/shapes.png")}
            (Path(folder) / "requests.jsonl").write_text(json.dumps(request) + "\n")
            for line in lines:
                if "DIR" in line or line.split()[0] in ("serve", "bench"):
                    continue
                with self.subTest(line):
                    output = self.run_command("$gapless " + line, folder)
                    ran += 1
                    if line.startswith("batch"):
                        self.assertIn('"answer"', (Path(folder) / "answers.jsonl").read_text())
                    else:
                        self.assertNotEqual(output.strip(), "")
        self.assertGreaterEqual(ran, 4)

    def run_command(self, command, folder):
        """In the repository, its own files in `folder`."""
        for name in ("out.png", "requests.jsonl", "answers.jsonl"):
            command = command.replace(" " + name, f" {folder}/{name}")
        done = subprocess.run(["bash", "-e", "-c", command], cwd=ROOT, capture_output=True, text=True,
                              env={**os.environ, "gapless": os.environ["GAPLESS_BINARY"]})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_readme(self):
        answer = json.loads(self.run_shell(blocks("README.md", "sh")[0]))
        pythons = blocks("README.md", "python")
        self.assertEqual(len(pythons), 2)
        outputs = [self.run_here([sys.executable, "-c"], text) for text in pythons]
        self.assertEqual(outputs[0].splitlines()[0], answer["answer"])
        self.assertIn("x_min", outputs[0])
        self.assertEqual(outputs[1].strip(), answer["answer"])


if __name__ == "__main__":
    unittest.main()
