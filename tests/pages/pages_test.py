"""Holds the pages to what is in the repository: the files and tests that they name are there, and tables of
figures are those of the result files that they name. Needs nothing but Python 3 and git.

    python3 tests/pages/pages_test.py
    tools/bench_tables.py --update README.md docs/*.md      makes the tables anew
    tools/api_tables.py --update                            those of docs/http_api.md, and docs/openapi.json
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import bench_tables  # noqa: E402

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "models/*/*.md", "src/**/*.md")
    for path in ROOT.glob(pattern)
)
SUFFIXES = r"(?:h|cuh|cpp|cu|py|md|json|svg|png|jpg|txt|cmake|safetensors)"
# Of published models, of readers and of the server, so not in the repository.
OTHERS = {"/openapi.json", "moondream.py", "model.safetensors.index.json", "NAME.safetensors", "NAME.json"}
UNIT = r"(?:ms|µs|%|TB/s|GB/s|TFLOP/s|tokens/s)"


def files():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.splitlines()] if listed.returncode == 0 else list(ROOT.glob("**/*"))


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def outside_of_blocks(page):
    """Without examples in fences or by indentation: they name the reader's files."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def expand(name):
    """a/{b,c}-d.json -> a/b-d.json, a/c-d.json"""
    braces = re.search(r"\{([^{}]*)\}", name)
    if not braces:
        return [name]
    return [one for part in braces[1].split(",") for one in expand(name.replace(braces[0], part, 1))]


class Pages(unittest.TestCase):
    maxDiff = 2000

    def test_tables_are_those_of_the_result_files(self):
        os.chdir(ROOT)
        marks = 0
        for page in PAGES:
            text = text_of(page)
            marks += len(re.findall(r"^<!-- .*\.json.* -->$", text, re.MULTILINE))
            with self.subTest(page):
                self.assertEqual(text, bench_tables.with_tables(text))
        self.assertGreater(marks, 15)

    def test_the_fields_of_the_api_are_those_of_its_file(self):
        done = subprocess.run([sys.executable, str(ROOT / "tools/api_tables.py")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_files_that_pages_name_are_there(self):
        ends = set()
        for path in files():
            parts = path.relative_to(ROOT).parts
            ends |= {"/".join(parts[i:]) for i in range(len(parts))} | {"/".join(parts[:i]) for i in range(len(parts))}
        named = 0
        for page in PAGES:
            text = outside_of_blocks(page)
            names = re.findall(rf"`([\w./{{}},*-]+\.{SUFFIXES})`", text)
            names += re.findall(r"`((?:scripts|tests|tools|src|docs|bench|models|apps|testing|cmake)/[\w./-]+)`", text)
            names += re.findall(r"\]\(([^)#:]+)\)", text)
            for name in sorted({one for name in names for one in expand(name)} - OTHERS):
                named += 1
                pattern = re.compile(re.escape(name.rstrip("/").removeprefix("../").removeprefix("../")).replace(r"\*", "[^/]*"))
                there = any(pattern.fullmatch(end) for end in ends) if "*" in name else pattern.pattern.replace("\\", "") in ends
                source = any(f"{name.removeprefix('../')}.{ending}" in ends for ending in ("cpp", "h"))  # a test's binary
                with self.subTest(f"{page} names {name}"):
                    self.assertTrue(there or source)
        self.assertGreater(named, 100)

    def test_the_readme_lists_every_page(self):
        self.assertEqual([page for page in PAGES if page.startswith("docs/") and f"`{page}`" not in text_of("README.md")], [])

    def test_figures_say_where_they_come_from(self):
        """A section with figures names a result file, or the test that holds them, or says that nothing does."""
        for page in PAGES:
            parts = re.split(r"^(#+ .*)$", text_of(page), flags=re.MULTILINE)
            for heading, section in zip(["top", *parts[1::2]], parts[0::2]):
                if not re.search(rf"\d\s?{UNIT}|\|\s*\d+\.\d+ *[|(]", section):
                    continue
                with self.subTest(f"{page}: {heading}"):
                    self.assertTrue(re.search(r"\.json\b|bench/results/|_test\b|Test\.\w|[Nn]o result file|limits\.h", section),
                                    "names no result file and no test")

    def test_result_files_say_what_made_them(self):
        """Of a file of several runs each may say so for itself."""
        for path in sorted((ROOT / "bench/results").glob("*.json")):
            said = set(re.findall(r'"(command|date|commit|device|ceiling)": "[^"]', path.read_text(encoding="utf-8")))
            with self.subTest(path.name):
                self.assertEqual(said, {"command", "date", "commit", "device", "ceiling"})

    def test_shares_of_the_ceiling_that_are_explained_are_those_measured(self):
        """The table of docs/benchmarks.md that says where the rest is lost."""
        def shares(name):
            result = json.loads((ROOT / f"bench/results/{name}.json").read_text(encoding="utf-8"))
            return {f"{kind}, {size}": f"{point['percent_of_ceiling']:.0f} %"
                    for kind, points, key in (("decode", "points", "rows"), ("encode", "encodes", "size"), ("prefill", "prefills", "size"))
                    for point in result.get(points, []) for size in (str(point[key]),)}
        measured, rested = {**shares("decode-h200"), **shares("forward-h200")}, shares("forward-rest-h200")
        rows = re.findall(r"^\| ((?:decode|encode|prefill), [\dx ]+?)(?: rows?| crops?)? \| ([^|]*) \|", text_of("docs/benchmarks.md"), re.MULTILINE)
        self.assertEqual(len(rows), 8)
        for step, said in rows:
            name = step.replace(" x ", "x")
            wanted = measured[name] + (f", {rested[name]} after rest" if name in rested else "")
            with self.subTest(step):
                self.assertEqual(said, wanted)

    def test_tests_that_pages_name_are_there(self):
        sources = subprocess.run(["git", "grep", "-hE", r"^(TEST|TEST_F|TEST_P|TYPED_TEST)\(|^ *def test_|^class "], cwd=ROOT,
                                 capture_output=True, text=True, check=True).stdout
        tests = {f"{a}.{b}" for a, b in re.findall(r"^TEST\w*\((\w+), *(\w+)", sources, re.MULTILINE)}
        binaries = {path.stem for path in files() if path.suffix in (".cpp", ".py")} | set(
            re.findall(r"gapless_test\((\w+)", "".join(p.read_text() for p in files() if p.name == "CMakeLists.txt")))
        named = 0
        for page in PAGES:
            pattern = r"`(?:(\w+Test|Published\w+)|…)\.([A-Z]\w+)…?`"
            for suite, test in re.findall(pattern, outside_of_blocks(page)):
                named += 1
                wanted = [one for one in tests
                          if one.split(".")[1].startswith(test) and (not suite or one.startswith(suite + "."))]
                with self.subTest(f"{page} names {suite}.{test}"):
                    self.assertTrue(wanted)
            for binary in re.findall(r"`(\w+_test)`", outside_of_blocks(page)):
                named += 1
                with self.subTest(f"{page} names {binary}"):
                    self.assertIn(binary, binaries)
        self.assertGreaterEqual(named, 15)

    def test_result_files_are_of_the_commit_that_is_said(self):
        """`a.json`, `b.json`, commit 1234567, but for older ones "in git"; in tables `a.json` (1234567)."""
        names = r"(?:`(?:bench/results/)?[\w*-]+\.json`(?:,? and |, |; )?)+"
        said = [rf"({names}),? (?:both )?commit ([0-9a-f]{{7}})\b(?!, in git)", r"(`[\w-]+\.json`) \(([0-9a-f]{7})\)"]
        compared = 0
        for page in PAGES:
            text = " ".join(text_of(page).split())
            for files_said, commit in (found for pattern in said for found in re.findall(pattern, text)):
                for name in re.findall(r"([\w*-]+\.json)", files_said):
                    for path in (ROOT / "bench/results").glob(name):
                        compared += 1
                        with self.subTest(f"{page}: {path.name}, commit {commit}"):
                            self.assertIn(commit, json.loads(path.read_text(encoding="utf-8"))["commit"])
        self.assertGreater(compared, 50)


if __name__ == "__main__":
    unittest.main()
