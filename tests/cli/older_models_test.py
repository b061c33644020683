"""Small models of the shape of Moondream 0.5B and of Moondream 2 of March 2025, of random weights, through the command line."""

import json
import unittest

from cli import PICTURE, FolderTest, gapless

HALF = ("--model", "random:moondream-0.5b-small:5", "--device", "cpu")
MARCH = ("--model", "random:moondream2-march-small:5", "--device", "cpu")


def run(skill, model, *arguments):
    done = gapless("run", skill, *model, "--json", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class OlderModelsTest(FolderTest):
    def test_query_and_caption_answer(self):
        for model in (HALF, MARCH):
            for arguments in (("--question", "How many shapes?", "--image", PICTURE), ("--question", "Hello?")):
                self.assertIn("answer", run("query", model, *arguments, "--max-tokens", "8"))
            for length in ("short", "normal"):
                arguments = ("--image", PICTURE, "--length", length, "--max-tokens", "8")
                self.assertIn("caption", run("caption", model, *arguments))
        self.assertIn("caption", run("caption", MARCH, "--image", PICTURE, "--length", "long", "--max-tokens", "8"))

    def test_long_captions_came_in_march(self):
        done = gapless("run", "caption", *HALF, "--image", PICTURE, "--length", "long")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no caption of that length", done.stderr)

    def test_points_and_boxes_lie_in_the_picture(self):
        for model in (HALF, MARCH):
            arguments = ("--image", PICTURE, "--object", "circle", "--max-objects", "4")
            points = run("point", model, *arguments)["points"]
            boxes = run("detect", model, *arguments)["objects"]
            for point in points:
                self.assertTrue(0 <= point["x"] <= 1 and 0 <= point["y"] <= 1, point)
            for box in boxes:
                self.assertTrue(0 <= box["x_min"] <= box["x_max"] <= 1, box)
            # Any token but the end begins an object.
            self.assertEqual((len(points), len(boxes)), (4, 4))

    def test_coordinates_of_half_a_billion_are_whole_1024ths(self):
        arguments = ("--image", PICTURE, "--object", "circle", "--max-objects", "4")
        for model, whole in ((HALF, True), (MARCH, False)):
            points = run("point", model, *arguments)["points"]
            values = [point[axis] * 1024 for point in points for axis in "xy"]
            self.assertEqual(all(abs(value - round(value)) < 1e-3 for value in values), whole, values)

    def test_masks_of_the_host_are_refused(self):
        done = gapless("run", "detect", *HALF, "--image", PICTURE, "--object", "circle", "--host-masks")
        self.assertEqual(done.returncode, 1)
        self.assertIn("need a token for coordinates", done.stderr)

    def test_info_says_what_it_is(self):
        done = gapless("info", "--model", "random:moondream-0.5b")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("631,889,382", "2 x 1024 linear size bins, MLP 8192", "width 1024"):
            self.assertIn(line, done.stdout)


if __name__ == "__main__":
    unittest.main()
