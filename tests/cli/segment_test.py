"""gapless run segment with small models of random weights: paths, boxes, pictures, and what is refused."""

import base64
import json
import re
import struct
import unittest
import urllib.request
import zlib

from cli import PICTURE, ROOT, FolderTest, Serving, gapless

# In float32, so that what random weights draw is the same on every processor.
MODEL = ("--model", "random:moondream3-small:5", "--device", "cpu", "--compute", "float32")
ASK = ("--image", PICTURE, "--object", "circle")
NUMBER = r"-?(?:0|1|0\.\d{0,2}[1-9])"
# One command for each form that random weights like; the engine's and the automaton's tests know SVG's whole grammar.
PATH = re.compile(r"[Mm](?: NUMBER NUMBER)+(?: (?:[Zz]|[A-Yb-y](?: -?[\d.]+)+))*".replace("NUMBER", NUMBER))


# A network of random weights for this model's vision encoder.
REFINER = ROOT / "tests/golden/refiner/head.safetensors"
PAIR = r"-?\d*\.\d{3},-?\d*\.\d{3}"
REFINED_PATH = re.compile(r"^(?:MPAIR(?:LPAIR|CPAIR,PAIR,PAIR)+z)+$".replace("PAIR", PAIR))


def posted(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.read().decode()


def run(*arguments, max_tokens=60):
    done = gapless("run", "segment", *MODEL, *ASK, "--max-tokens", max_tokens, *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def pixels_of(file):
    """A PNG of 8-bit RGB with filter 0 to 4, as width, height and rows of bytes."""
    data, at, packed = file.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, rows, before = zlib.decompress(packed), [], bytearray(3 * width)
    for y in range(height):
        kind, row = raw[y * (3 * width + 1)], bytearray(raw[y * (3 * width + 1) + 1:(y + 1) * (3 * width + 1)])
        for i in range(3 * width):
            left, up, corner = (row[i - 3], before[i], before[i - 3]) if i >= 3 else (0, before[i], 0)
            guess = left + up - corner
            paeth = min((left, up, corner), key=lambda value: abs(guess - value))
            row[i] = (row[i] + (0, left, up, (left + up) // 2, paeth)[kind]) % 256
        rows.append(row)
        before = row
    return width, height, rows


class SegmentTest(FolderTest):
    def test_the_answer_is_that_of_the_api(self):
        answer = json.loads(run("--json"))
        self.assertRegex(answer["path"], PATH)
        box = answer["bbox"]
        self.assertTrue(0 <= box["x_min"] <= box["x_max"] <= 1 and 0 <= box["y_min"] <= box["y_max"] <= 1, box)
        self.assertIs(answer["coarse"], True)
        self.assertEqual(answer["finish_reason"], "length")
        sure = json.loads(run("--json", "--confidence"))
        self.assertEqual(sure["path"], answer["path"])
        self.assertEqual(sure["confidence"], 1, "its box always comes")
        self.assertEqual(len(sure["bin_confidences"]), 4)

    def test_the_text_is_the_box_and_the_path_streamed_or_not(self):
        answer = json.loads(run("--json"))
        box = " ".join(f"{answer['bbox'][side]:.4f}" for side in ("x_min", "y_min", "x_max", "y_max"))
        self.assertEqual(run(), f"{box}  {answer['path']}\n")
        self.assertEqual(run("--stream"), f"{box}  {answer['path']}\n")
        self.assertEqual(run("--object", "square").splitlines()[0], f"circle: {box}  {answer['path']}")

    def test_masks_of_the_host_give_the_same_path(self):
        for more in ((), ("--temperature", "3", "--seed", "4"), ("--spatial-ref", "0.5,0.5")):
            self.assertEqual(run(*more), run(*more, "--host-masks"), more)

    def test_it_is_drawn_into_the_picture(self):
        # The vocabulary has numbers up to 9 of 960, so what random weights draw is small; three objects have an inside.
        answers = json.loads(run("--json", "--annotate", self.folder / "a.png", "--object", "square", "--object", "heart",
                                 "--temperature", "9", "--seed", "4", max_tokens=400))["answers"]
        width, height, drawn = pixels_of(self.folder / "a.png")
        _, _, plain = pixels_of(PICTURE)
        changed = [(x / width, y / height) for y in range(height) if drawn[y] != plain[y] for x in range(width)
                   if drawn[y][3 * x:3 * x + 3] != plain[y][3 * x:3 * x + 3]]
        self.assertGreater(len(changed), 8, answers)
        boxes = [answer["bbox"] for answer in answers]
        for x, y in changed:
            self.assertTrue(any(box["x_min"] - 0.01 <= x <= box["x_max"] and box["y_min"] - 0.01 <= y <= box["y_max"]
                                for box in boxes), (x, y, boxes))

    def test_with_a_refiner_the_answer_is_refined(self):
        warm = ("--temperature", "9", "--seed", "3")
        coarse = json.loads(run("--json", *warm, max_tokens=200))
        refined = json.loads(run("--json", *warm, "--refiner", REFINER, max_tokens=200))
        self.assertIs(coarse["coarse"], True)
        self.assertIs(refined["coarse"], False)
        self.assertRegex(refined["path"], REFINED_PATH)
        self.assertEqual(refined["metrics"]["output_tokens"], coarse["metrics"]["output_tokens"])
        # What was streamed is the coarse one; the refined one follows.
        streamed = run("--stream", *warm, "--refiner", REFINER, max_tokens=200).splitlines()
        self.assertTrue(streamed[0].endswith(coarse["path"]), streamed)
        self.assertTrue(streamed[1].endswith(refined["path"]), streamed)
        # It is drawn, too.
        run(*warm, "--refiner", REFINER, "--annotate", self.folder / "a.png", max_tokens=200)
        _, _, drawn = pixels_of(self.folder / "a.png")
        self.assertNotEqual(drawn, pixels_of(PICTURE)[2])

    def test_a_server_refines_what_it_streams_last(self):
        config = self.write("options.toml", f'[serve]\nmodel = "random:moondream3-small:5"\ncompute = "float32"\nrefiner = "{REFINER}"\n')
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        body = {"image_url": picture, "object": "circle", "settings": {"temperature": 9, "seed": 3, "max_tokens": 200}}
        with Serving("--config", config, log_path=self.folder / "log") as server:
            server.wait_for(r" ready model=")
            url = f"http://127.0.0.1:{server.port()}/v1/segment"
            whole = json.loads(posted(url, body))
            events = [json.loads(line[6:]) for line in posted(url, {**body, "stream": True}).splitlines() if line.startswith("data: {")]
            server.wait_for(r"segments are refined on the CPU, outlined by (lines|potrace): \d")
        self.assertIs(whole["coarse"], False)
        self.assertRegex(whole["path"], REFINED_PATH)
        self.assertEqual(events[0]["type"], "bbox")
        pieces = "".join(event["chunk"] for event in events[1:-1])
        self.assertRegex(pieces, "^[Mm] ")
        self.assertEqual(events[-1]["path"], whole["path"])
        self.assertEqual(events[-1]["bbox"], whole["bbox"])
        self.assertIs(events[-1]["coarse"], False)

    def test_what_is_no_refiner_is_refused(self):
        wrong = self.write("wrong.safetensors", "no such file")
        tiny = ROOT / "models/tiny/model.safetensors"
        for model, file, says in ((MODEL[1], "/nowhere.safetensors", "/nowhere.safetensors"), (MODEL[1], wrong, "wrong.safetensors"),
                                  (MODEL[1], tiny, "has no tensor 'mask_tokens', so it is no refiner of segments"),
                                  ("random:moondream-0.5b-small", REFINER, "has no segments that")):
            done = gapless("run", "segment", "--model", model, "--device", "cpu", "--refiner", file, *ASK)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("--refiner: ", done.stderr)
            self.assertIn(says, done.stderr)

    def test_a_model_without_the_skill_says_which_have_it(self):
        for model in ((), ("--model", "random:moondream-0.5b-small")):
            done = gapless("run", "segment", *model, "--device", "cpu", *ASK)
            self.assertEqual(done.returncode, 1)
            self.assertIn("this model has no segment skill; Moondream 3 and Moondream 3.1 have it", done.stderr)

    def test_what_is_wrong_shows_before_a_model_is_loaded(self):
        for arguments, says in ((("--image", PICTURE), "segment needs --object"), (("--object", "x"), "needs an image"),
                                ((*ASK, "--spatial-ref", "2,0"), "--spatial-ref"), ((*ASK, "--regex", "a"), "is for query"),
                                ((*ASK, "--reasoning"), "reasoning is for query")):
            done = gapless("run", "segment", "--model", "/nowhere", *arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(says, done.stderr)

    def test_lines_of_a_batch(self):
        lines = self.write("in.jsonl", json.dumps({"skill": "segment", "image": str(PICTURE), "object": "circle",
                                                   "settings": {"max_tokens": 60}}) + "\n")
        out = self.folder / "out.jsonl"
        done = gapless("batch", *MODEL, "--in", lines, "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(out.read_text())["path"], json.loads(run("--json"))["path"])


if __name__ == "__main__":
    unittest.main()
