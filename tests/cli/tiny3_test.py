"""The shipped Moondream 3 in small answers every skill rightly: on the command line, over Moondream's routes and OpenAI's."""

import base64
import json
import unittest
import urllib.error
import urllib.request

from cli import PICTURE, ROOT, FolderTest, Serving, gapless
from segment_test import pixels_of

# In float32, so that it is the same on every processor.
MODEL = ("--model", ROOT / "models/tiny3", "--compute", "float32")
COUNT = "How many triangles are there?"
# Of the picture: two circles, one of each other kind.
CIRCLES = [(0.31, 0.08, 0.46, 0.28), (0.82, 0.66, 0.99, 0.92)]
TRIANGLE = (0.58, 0.51, 0.69, 0.66)
SQUARE = (0.29, 0.50, 0.46, 0.77)
SKILLS = ["query", "caption", "point", "detect", "segment", "reasoning"]


def run(skill, *arguments):
    done = gapless("run", skill, *MODEL, "--device", "cpu", "--image", PICTURE, "--json", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def sides(box):
    return [box[side] for side in ("x_min", "y_min", "x_max", "y_max")]


class Tiny3Test(FolderTest):
    def assert_box(self, box, expected):
        for value, wanted in zip(sides(box), expected, strict=True):
            self.assertAlmostEqual(value, wanted, delta=0.05)

    def assert_in(self, point, box):
        x, y = point
        self.assertTrue(box[0] < x < box[2] and box[1] < y < box[3], (point, box))

    def assert_square(self, answer):
        self.assert_box(answer["bbox"], SQUARE)
        self.assertEqual(answer["path"], "M 0 0 L 1 0 L 1 1 L 0 1 Z")

    def test_command_line(self):
        self.assertEqual(run("query", "--question", "How many hearts are there?")["answer"], "1")
        self.assertEqual(run("query", "--question", "What colour is the heart?")["answer"], "yellow")
        reasoned = run("query", "--question", COUNT, "--reasoning")
        self.assertEqual(reasoned["answer"], "1")
        (part,) = reasoned["reasoning"]["grounding"]
        self.assertLess(part["start_idx"], part["end_idx"])
        (point,) = part["points"]
        self.assert_in(point, TRIANGLE)
        for point, box in zip(run("point", "--object", "circle")["points"], CIRCLES, strict=True):
            self.assert_in((point["x"], point["y"]), box)
        (box,) = run("detect", "--object", "triangle")["objects"]
        self.assert_box(box, TRIANGLE)
        self.assertEqual(run("detect", "--object", "elephant")["objects"], [])
        self.assertIn("yellow circle", run("caption", "--length", "normal")["caption"])
        self.assert_square(run("segment", "--object", "square"))

    def test_a_segment_is_drawn_into_the_picture(self):
        file = self.folder / "a.png"
        x0, y0, x1, y1 = sides(run("segment", "--object", "square", "--annotate", file)["bbox"])
        width, height, drawn = pixels_of(file)
        _, _, plain = pixels_of(PICTURE)
        changed = [(x / width, y / height) for y in range(height) for x in range(width)
                   if drawn[y][3 * x:3 * x + 3] != plain[y][3 * x:3 * x + 3]]
        for x, y in changed:
            self.assertTrue(x0 - 0.01 <= x <= x1 + 0.01 and y0 - 0.01 <= y <= y1 + 0.01, (x, y))
        self.assertGreater(len(changed) / (width * height), 0.5 * (x1 - x0) * (y1 - y0), "most of its box")

    def test_both_apis(self):
        picture = "data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()
        with Serving(*MODEL, log_path=self.folder / "log") as server:
            base = f"http://127.0.0.1:{server.port()}"
            server.wait_for(" ready model=")

            def post(route, **body):
                request = urllib.request.Request(base + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=240) as response:
                    return json.loads(response.read())

            def chat(text="", **fields):
                content = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": text or COUNT}]
                answer = post("/v1/chat/completions", messages=[{"role": "user", "content": content}], temperature=0, **fields)
                return answer["choices"][0]["message"]

            with urllib.request.urlopen(base + "/model_info", timeout=240) as response:
                self.assertEqual(json.loads(response.read())["skills"], SKILLS)
            self.assertEqual(post("/v1/query", image_url=picture, question=COUNT)["answer"], "1")
            reasoned = post("/v1/query", image_url=picture, question=COUNT, reasoning=True)
            self.assertEqual((reasoned["answer"], len(reasoned["reasoning"]["grounding"][0]["points"])), ("1", 1))
            self.assertIn("yellow circle", post("/v1/caption", image_url=picture)["caption"])
            self.assertEqual(len(post("/v1/point", image_url=picture, object="circle")["points"]), 2)
            (box,) = post("/v1/detect", image_url=picture, object="triangle")["objects"]
            self.assert_box(box, TRIANGLE)
            self.assert_square(post("/v1/segment", image_url=picture, object="square"))
            self.assertEqual(chat()["content"], "1")
            reasoned = chat(reasoning=True)
            self.assertEqual((reasoned["content"], len(reasoned["reasoning_details"]["grounding"][0]["points"])), ("1", 1))
            for skill, found in (("point", "points"), ("detect", "objects")):
                answer = json.loads(chat(moondream={"skill": skill, "object": "triangle"})["content"])
                self.assertEqual(len(answer[found]), 1)
            self.assert_square(json.loads(chat(moondream={"skill": "segment", "object": "square"})["content"]))
            self.assertIn("yellow circle", chat(moondream={"skill": "caption"})["content"])
            with self.assertRaises(urllib.error.HTTPError) as refused:
                post("/v1/point", image_url=picture, object="gaze", spatial_refs=[[0.5, 0.5]])
            self.assertEqual(refused.exception.code, 400)
            self.assertIn("have it", refused.exception.read().decode())

    def test_it_has_no_gaze(self):
        says = "this model has no gaze skill; Moondream 2 and Moondream 3 have it"
        for eyes in ("0.5,0.5", "0.2,0.2,0.4,0.5"):
            done = gapless("run", "point", *MODEL, "--device", "cpu", "--image", PICTURE, "--object", "gaze", "--spatial-ref", eyes)
            self.assertEqual(done.returncode, 1, eyes)
            self.assertIn(says, done.stderr)
        self.assertEqual(gapless("run", "point", *MODEL, "--device", "cpu", "--image", PICTURE, "--object", "gaze").returncode, 0)

    def test_info_says_what_it_is(self):
        about = gapless("info", *MODEL[:2]).stdout
        for line in ("from layer 4 on 16 experts of 256, 4 for each token", "heads scaled by token and position", "928 tokens"):
            self.assertIn(line, about)


if __name__ == "__main__":
    unittest.main()
