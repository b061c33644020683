"""tools/add_gpu_run.py: what it takes, what it refuses and why, and the row that comes of it.

    python3 tests/pages/add_gpu_run_test.py
"""

import copy
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gpu_table  # noqa: E402

# What the page's tables are of, and a few that are none of its own.
FILES = [f"{name}.json" for name in ("gpus-predicted", "paths-h200", "paths-spills-h200", "decode-h200", "decode-cpu",
                                     "decode-fp8-weights-h200")]
OURS = json.loads((ROOT / "bench/results/decode-h200.json").read_text(encoding="utf-8"))


def run_on(device, slower=6.0):
    """The H200's run as if another GPU had taken so many times as long."""
    run = copy.deepcopy(OURS)
    run["device"] = device
    for point in run["points"]:
        for key in ("median", "p10", "p90"):
            point["step_ms"][key] *= slower
        point["gb_per_s"] /= slower
    return run


def steps_of(slower):
    """A cell of the table: milliseconds at 1, 8 and 32 rows."""
    times = {point["rows"]: point["step_ms"]["median"] for point in OURS["points"]}
    return " / ".join(f"{times[rows] * slower:.2f}" for rows in (1, 8, 32))


class AddGpuRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "bench/results").mkdir(parents=True)
        (self.root / "docs").mkdir()
        shutil.copy(ROOT / "docs/gpus.md", self.root / "docs")
        for name in FILES:
            shutil.copy(ROOT / "bench/results" / name, self.root / "bench/results")

    def add(self, run, *options):
        path = self.root / "run.json"
        path.write_text(run if isinstance(run, str) else json.dumps(run), encoding="utf-8")
        return subprocess.run([sys.executable, str(ROOT / "tools/add_gpu_run.py"), str(path), "--root", str(self.root), *options],
                              capture_output=True, text=True)

    def rows(self, name):
        page = (self.root / "docs/gpus.md").read_text(encoding="utf-8")
        return [line for line in page.split("\n") if line.startswith(f"| {name} |")]

    def test_a_run_becomes_a_file_and_a_row(self):
        before = self.rows("RTX 3090")
        self.assertEqual(len(before), 1)
        self.assertIn("| compiled only", before[0])
        done = self.add(run_on("NVIDIA GeForce RTX 3090"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("bench/results/decode-rtx-3090.json", done.stdout)
        (row,) = self.rows("RTX 3090")
        self.assertIn("| `gapless bench decode` |", row)
        self.assertIn(f"| {steps_of(6)} (`decode-rtx-3090.json`, {OURS['commit']}) |", row)
        stored = json.loads((self.root / "bench/results/decode-rtx-3090.json").read_text())
        self.assertEqual(stored, run_on("NVIDIA GeForce RTX 3090"))
        # What was predicted stays.
        self.assertEqual(row.split("|")[5:9], before[0].split("|")[5:9])
        again = self.add(run_on("NVIDIA GeForce RTX 3090", 7))
        self.assertEqual(again.returncode, 1)
        self.assertIn("--replace", again.stderr)
        self.assertEqual(self.add(run_on("NVIDIA GeForce RTX 3090", 7), "--replace").returncode, 0)
        self.assertIn(f"| {steps_of(7)} (", self.rows("RTX 3090")[0])

    def test_a_gpu_without_a_prediction_gets_a_row_of_its_own(self):
        self.assertEqual(self.add(run_on("NVIDIA GeForce RTX 3090 Ti")).returncode, 0)
        self.assertIn("| – |", self.rows("RTX 3090 Ti")[0])
        self.assertIn("compiled only", self.rows("RTX 3090")[0])

    def test_wrong_files_are_refused_with_a_sentence(self):
        def wrong(**fields):
            return {**run_on("NVIDIA A100-SXM4-80GB", 2.4), **fields}

        def point(change):
            run = wrong()
            change(run["points"][1])
            return run

        fp8 = json.loads((ROOT / "bench/results/decode-fp8-weights-h200.json").read_text())
        for run, sentence in [
            ("{", "cannot be read as JSON"),
            ("[]", "not a result of `gapless bench decode`"),
            (wrong(benchmark="forward"), "not a result of `gapless bench decode`"),
            (wrong(device="CPU"), "not an NVIDIA GPU"),
            (wrong(device="NVIDIA ../../x|y"), "characters that none has"),
            (wrong(device=None), "`device` is missing"),
            (wrong(commit="unknown"), "'unknown' is not one"),
            (wrong(commit="0439982-dirty"), "without changes"),
            (wrong(date="today"), "`date`"),
            (wrong(model="models/tiny"), "the table is of Moondream 2"),
            ({**wrong(), "command": fp8["command"]}, "--weights fp8"),
            (wrong(command="gapless bench decode --kv-cache=fp8"), "--kv-cache fp8"),
            (wrong(depth=1), "depth"),
            (wrong(shared_image=True), "about one picture"),
            (wrong(points={}), "`points`"),
            (wrong(points=wrong()["points"][:1]), "no point of 8 rows"),
            (point(lambda one: one.pop("step_ms")), "no `step_ms`"),
            (point(lambda one: one["step_ms"].update(p90=0.1)), "between p10 and p90"),
            (point(lambda one: one["step_ms"].update(median=True)), "no `step_ms`"),
            (point(lambda one: one.update(gb_per_s=1)), "is not its bytes by its time"),
            (point(lambda one: one.pop("steps")), "lacks"),
            (point(lambda one: one.update(mean_context=200)), "200 cached tokens"),
            (run_on("NVIDIA L4", 6.0), "more than the GPU's memory has, 300"),
        ]:
            with self.subTest(sentence):
                done = self.add(run)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn(sentence, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
        left = {path.name for path in (self.root / "bench/results").iterdir()}
        self.assertEqual(left, set(FILES))

    def test_a_driver_may_say_more_of_the_same_gpu(self):
        for device, name, same in [
            ("NVIDIA H100 80GB HBM3", "H100", True),
            ("NVIDIA A100-SXM4-80GB", "A100", True),
            ("NVIDIA GeForce RTX 4090", "RTX 4090", True),
            ("NVIDIA A100-SXM4-40GB", "A100", False),
            ("NVIDIA H100 PCIe", "H100", False),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090", False),
            ("NVIDIA L40", "L4", False),
        ]:
            self.assertEqual(gpu_table.is_gpu(device, name), same, device)


if __name__ == "__main__":
    unittest.main()
