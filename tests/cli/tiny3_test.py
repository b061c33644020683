"""The shipped Moondream 3 in small answers every skill rightly: on the command line, over Moondream's routes and OpenAI's."""

import base64
import json
import re
import unittest
import urllib.error
import urllib.request

from cli import PICTURE, ROOT, FolderTest, Serving, gapless
from segment_test import pixels_of

# In float32, so that it is the same on every processor.
MODEL = ("--model", ROOT / "models/tiny3", "--compute", "float32")
COUNT = "How many triangles are there?"
# Of the picture, as its pixels say: two circles, one of each other kind. Nothing else that is blue is near the square.
CIRCLES = [(0.319, 0.079, 0.472, 0.277), (0.826, 0.656, 0.992, 0.927)]
TRIANGLE = (0.592, 0.512, 0.686, 0.660)
SQUARE = (0.347, 0.506, 0.510, 0.771)
SKILLS = ["query", "caption", "point", "detect", "segment", "reasoning"]


def run(skill, *arguments):
    done = gapless("run", skill, *MODEL, "--device", "cpu", "--image", PICTURE, "--json", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


def sides(box):
    return [box[side] for side in ("x_min", "y_min", "x_max", "y_max")]


def polygons_in(path):
    """The outlines of a path that has M, L and Z alone."""
    polygons = []
    for command, x, y in re.findall(r"([MLZ])(?: (\S+) (\S+))?", path):
        if command == "M":
            polygons.append([])
        if command != "Z":
            polygons[-1].append((float(x), float(y)))
    return polygons


def inside(x, y, polygons):
    """Whether an odd number of edges are to the right of a point."""
    crossed = False
    for polygon in polygons:
        for (ax, ay), (bx, by) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            crossed ^= (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay)
    return crossed


def pixels_of_square():
    """Size of the picture, and where the square is: what is blue in its box."""
    width, height, rows = pixels_of(PICTURE)
    box = [range(int(SQUARE[i] * size) - 2, int(SQUARE[i + 2] * size) + 3) for i, size in enumerate((width, height))]
    return width, height, {(x, y) for y in box[1] for x in box[0] if rows[y][3 * x + 2] > rows[y][3 * x + 1] + 60}


class Tiny3Test(FolderTest):
    def assert_box(self, box, expected):
        for value, wanted in zip(sides(box), expected, strict=True):
            self.assertAlmostEqual(value, wanted, delta=0.02)

    def assert_in(self, point, box):
        x, y = point
        self.assertTrue(box[0] < x < box[2] and box[1] < y < box[3], (point, box))

    def assert_covers_square(self, found, square):
        """One turned to the other side would cover 0.8, and so would the box."""
        self.assertGreater(len(found & square) / len(found | square), 0.9)

    def assert_square(self, answer):
        """Its outline is turned as the square is."""
        self.assert_box(answer["bbox"], SQUARE)
        width, height, square = pixels_of_square()
        x0, y0, x1, y1 = sides(answer["bbox"])
        polygons = [[((x0 + x * (x1 - x0)) * width, (y0 + y * (y1 - y0)) * height) for x, y in polygon]
                    for polygon in polygons_in(answer["path"])]
        found = {(x, y) for y in range(height) for x in range(width) if inside(x + 0.5, y + 0.5, polygons)}
        self.assert_covers_square(found, square)

    def test_command_line(self):
        self.assertEqual(run("query", "--question", "How many circles are there?")["answer"], "2")
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
        self.assertIn("blue square", run("caption", "--length", "normal")["caption"])
        self.assert_square(run("segment", "--object", "square"))

    def test_a_segment_is_drawn_into_the_picture(self):
        file = self.folder / "a.png"
        run("segment", "--object", "square", "--annotate", file)
        _, _, drawn = pixels_of(file)
        width, height, square = pixels_of_square()
        _, _, plain = pixels_of(PICTURE)
        changed = {(x, y) for y in range(height) for x in range(width)
                   if drawn[y][3 * x:3 * x + 3] != plain[y][3 * x:3 * x + 3]}
        self.assert_covers_square(changed, square)

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
            self.assertIn("blue square", post("/v1/caption", image_url=picture)["caption"])
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
            self.assertIn("blue square", chat(moondream={"skill": "caption"})["content"])
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
