"""The examples of python/examples and of docs/python.md, run as they stand."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

import cv2
import numpy
import supervision
from PIL import Image

import gapless
from support import EXAMPLES, GUARD_SECONDS, PICTURE, ROOT

FOLDER = ROOT / "python/examples"
sys.path.insert(0, str(FOLDER))


def stand_in_of_fiftyone():
    class Detection(dict):
        def __init__(self, *, label, bounding_box):
            super().__init__(label=label, bounding_box=bounding_box)

    class Detections:
        def __init__(self, *, detections):
            self.detections = detections

    class Sample(dict):
        def __init__(self, *, filepath):
            super().__init__()
            self.filepath = filepath

    module = types.ModuleType("fiftyone")
    module.Detection, module.Detections, module.Sample = Detection, Detections, Sample
    return module


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

    def test_fiftyones_labels(self):
        """With FiftyOne's own samples and labels where it is installed. Otherwise (it is large) with what its documentation
        says of them. Never with its database: a list of samples stands for the dataset."""
        if importlib.util.find_spec("fiftyone") is None:
            sys.modules["fiftyone"] = stand_in_of_fiftyone()
            self.addCleanup(sys.modules.pop, "fiftyone")
        fiftyone = importlib.import_module("fiftyone")
        import fiftyone_labels

        class Dataset:
            samples = [fiftyone.Sample(filepath=str(path)) for path in (PICTURE, EXAMPLES / "small.png")]
            saved = False

            def iter_samples(self, progress=None, autosave=False):
                yield from self.samples
                self.saved = autosave

        dataset = Dataset()
        with gapless.vl(device="cpu") as model:
            fiftyone_labels.label(dataset, model, "circle")
            boxes = model.detect(PICTURE, "circle")["objects"]
        self.assertTrue(dataset.saved)
        labels = dataset.samples[0]["objects"].detections
        self.assertEqual([label["label"] for label in labels], ["circle", "circle"])
        for label, box in zip(labels, boxes, strict=True):
            left, top, width, height = label["bounding_box"]
            self.assertAlmostEqual(left + width, box["x_max"])
            self.assertAlmostEqual(top + height, box["y_max"])
            self.assertEqual((left, top), (box["x_min"], box["y_min"]))
        self.assertTrue(all(sample["caption"] for sample in dataset.samples))

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
