"""The examples of python/examples and of docs/python.md, run as they stand."""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import cv2
import numpy
import supervision
from PIL import Image

import gapless
from support import EXAMPLES, GUARD_SECONDS, PICTURE, ROOT

FOLDER = ROOT / "python/examples"

# The example as it stands, but for the app, which nobody would look at: the dataset is kept instead.
LABEL = """
import sys, fiftyone, fiftyone_labels
class App:
    def __init__(self, dataset):
        dataset.persistent = True
        print(dataset.name)
    def wait(self):
        pass
fiftyone.launch_app = App
fiftyone_labels.main(*sys.argv[1:])
"""

# Of another process, from the database.
READ = """
import json, os, sys, fiftyone
dataset = fiftyone.load_dataset(sys.argv[1])
print(json.dumps({os.path.basename(sample.filepath): {
    "caption": sample["caption"], "boxes": [[box.label, *box.bounding_box] for box in sample["objects"].detections]}
    for sample in dataset}))
"""


class ExamplesTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)

    def run_example(self, name, *arguments):
        done = subprocess.run([sys.executable, FOLDER / name, *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, timeout=GUARD_SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_boxes_become_supervisions_detections(self):
        out = self.folder / "out.png"
        lines = self.run_example("detections.py", PICTURE, "circle", out).splitlines()
        with gapless.vl(device="cpu") as model:
            objects = model.detect(Image.open(PICTURE), "circle")["objects"]
        self.assertEqual(len(objects), 2)
        for line, box in zip(lines, objects, strict=True):
            expected = [box["x_min"] * 720, box["y_min"] * 480, box["x_max"] * 720, box["y_max"] * 480]
            for value, wanted in zip(map(float, line.split()), expected, strict=True):
                self.assertAlmostEqual(value, wanted, delta=0.06)
        self.assertFalse(numpy.array_equal(numpy.asarray(Image.open(out)), numpy.asarray(Image.open(PICTURE))))

    def test_a_camera_with_the_latency_of_each_answer(self):
        film = self.folder / "film.avi"
        frame = cv2.imread(str(PICTURE))
        other = cv2.imread(str(EXAMPLES / "chart.jpg"))
        writer = cv2.VideoWriter(str(film), cv2.VideoWriter_fourcc(*"MJPG"), 5, (720, 480))
        for picture in (frame, cv2.resize(other, (720, 480)), frame):
            writer.write(picture)
        writer.release()
        lines = self.run_example("camera.py", film, "--headless", "--question", "What colour is the heart?").splitlines()
        self.assertEqual(len(lines), 3, lines)
        shown = [re.fullmatch(r" *(\d+\.\d) ms  (.*)", line).groups() for line in lines]
        # Its colours are right, so blue and red were not mistaken for each other.
        self.assertEqual((shown[0][1], shown[2][1]), ("yellow", "yellow"))
        self.assertTrue(all(float(ms) > 0 for ms, _ in shown))

    def test_a_folder_becomes_lines_and_goes_on(self):
        pictures = self.folder / "pictures"
        (pictures / "more").mkdir(parents=True)
        for name in ("shapes.png", "more/small.png"):
            (pictures / name).write_bytes((EXAMPLES / Path(name).name).read_bytes())
        (pictures / "broken.jpg").write_bytes(b"no picture")
        (pictures / "notes.txt").write_text("no picture either")
        out = self.folder / "captions.jsonl"
        self.assertEqual(self.run_example("folder_to_jsonl.py", pictures, out), "2 captions, 1 pictures that could not be read\n")
        (pictures / "new.png").write_bytes(PICTURE.read_bytes())
        before = out.read_text()
        self.assertEqual(self.run_example("folder_to_jsonl.py", pictures, out), "3 captions, 1 pictures that could not be read\n")
        self.assertTrue(out.read_text().startswith(before), "what was answered is not asked again")
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual({line["id"] for line in lines if line.get("caption")}, {"shapes.png", "more/small.png", "new.png"})

    @unittest.skipUnless(platform.machine() == "x86_64", "there is no wheel with the database for this processor")
    def test_fiftyones_labels(self):
        """In a dataset of FiftyOne's own, in its database, read from there by another process."""
        pictures = self.folder / "pictures"
        pictures.mkdir()
        names = ("shapes.png", "small.png")
        for name in names:
            (pictures / name).write_bytes((EXAMPLES / name).read_bytes())

        def run(text, *arguments):
            """What it prints last. FiftyOne's settings and database are in a folder of the test."""
            home = {"HOME": str(self.folder), "FIFTYONE_DATABASE_DIR": str(self.folder / "database"), "FIFTYONE_DO_NOT_TRACK": "1",
                    "FIFTYONE_DATABASE_VALIDATION": "false", "PYTHONPATH": str(FOLDER)}
            done = subprocess.run([sys.executable, "-c", text, *map(str, arguments)], env={**os.environ, **home}, capture_output=True,
                                  text=True, timeout=GUARD_SECONDS)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.splitlines()[-1]

        told = json.loads(run(READ, run(LABEL, pictures, "circle")))
        self.assertEqual(set(told), set(names))
        with gapless.vl(device="cpu") as model:
            for name in names:
                objects = model.detect(pictures / name, "circle")["objects"]
                self.assertEqual(told[name]["caption"], model.caption(pictures / name, length="short")["caption"].strip())
                for (label, left, top, width, height), box in zip(told[name]["boxes"], objects, strict=True):
                    self.assertEqual((label, left, top), ("circle", box["x_min"], box["y_min"]))
                    self.assertAlmostEqual(left + width, box["x_max"])
                    self.assertAlmostEqual(top + height, box["y_max"])
        self.assertEqual(len(told["shapes.png"]["boxes"]), 2)

    def test_the_readme(self):
        block = re.search(r"^    import gapless\n(?:    .*\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
        done = subprocess.run([sys.executable, "-c", re.sub("^    ", "", block, flags=re.MULTILINE)], cwd=ROOT,
                              capture_output=True, text=True, timeout=GUARD_SECONDS)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "2"), done.stderr)

    def test_the_page(self):
        page = (ROOT / "docs/python.md").read_text()
        ran = 0
        for text in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
            with self.subTest(text.splitlines()[0]):
                done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True,
                                      timeout=GUARD_SECONDS)
                self.assertEqual(done.returncode, 0, done.stderr)
                for expected in re.findall(r"# prints (.*)$", text, re.MULTILINE):
                    self.assertIn(expected, done.stdout)
                    ran += 1
        self.assertGreaterEqual(ran, 3)
        for name in FOLDER.glob("*.py"):
            self.assertIn(f"python/examples/{name.name}", page)


if __name__ == "__main__":
    unittest.main()
