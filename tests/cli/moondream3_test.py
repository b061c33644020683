"""A small Moondream 3 of random weights through the command line: every skill that Moondream 2 has, and its options."""

import json
import unittest

from cli import PICTURE, FolderTest, gapless

# In float32, so that what random weights see is the same on every processor.
MODEL = ("--model", "random:moondream3-small:11", "--device", "cpu", "--compute", "float32")


def run(skill, *arguments):
    done = gapless("run", skill, *MODEL, "--json", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class Moondream3Test(FolderTest):
    def test_query_and_caption_answer(self):
        for arguments in (("--question", "How many shapes?", "--image", PICTURE), ("--question", "Hello?")):
            answer = run("query", *arguments, "--max-tokens", "8")
            self.assertIn("answer", answer)
        for length in ("short", "normal", "long"):
            self.assertIn("caption", run("caption", "--image", PICTURE, "--length", length, "--max-tokens", "8"))

    def test_points_and_boxes_lie_in_the_picture(self):
        points = run("point", "--image", PICTURE, "--object", "circle", "--max-objects", "4")["points"]
        for point in points:
            self.assertTrue(0 <= point["x"] <= 1 and 0 <= point["y"] <= 1, point)
        boxes = run("detect", "--image", PICTURE, "--object", "circle", "--max-objects", "4")["objects"]
        for box in boxes:
            self.assertTrue(0 <= box["x_min"] <= box["x_max"] <= 1, box)
        self.assertGreater(len(points) + len(boxes), 0, "random weights that see nothing show nothing")

    def test_an_option_of_numerics_changes_the_answer(self):
        arguments = ("--image", PICTURE, "--object", "circle", "--max-objects", "4")
        usual = run("point", *arguments)["points"]
        self.assertEqual(run("point", *arguments, "--numerics", "coord_divisor=last_bin")["points"], usual)
        other = run("point", *arguments, "--numerics", "tau_gelu=erf,coord_divisor=num_bins")["points"]
        self.assertNotEqual(other, usual)

    def test_an_unknown_option_of_numerics_is_an_error(self):
        for option, says in (("tau_gelu=relu", "it may be tanh, erf"), ("tau=erf", "there are tau_gelu"),
                             ("tau_gelu", "it may be tanh, erf")):
            done = gapless("run", "query", *MODEL, "--question", "Hello?", "--numerics", option)
            self.assertEqual(done.returncode, 1, option)
            self.assertIn(says, done.stderr)
        done = gapless("run", "query", "--model", "random:llama3-1b", "--device", "cpu", "--question", "x",
                       "--numerics", "tau_gelu=erf")
        self.assertEqual(done.returncode, 1)
        self.assertIn("it is a text model", done.stderr)

    def test_reasoning_comes_before_the_answer(self):
        arguments = ("--question", "How many shapes?", "--image", PICTURE, "--max-tokens", "8")
        answer = run("query", *arguments, "--reasoning")
        self.assertEqual(set(answer["reasoning"]), {"text", "grounding"})
        self.assertTrue(answer["reasoning"]["text"])
        self.assertGreater(answer["metrics"]["output_tokens"], 8, "reasoning and answer have a limit each")
        self.assertNotIn("reasoning", run("query", *arguments))
        whole = answer["reasoning"]["text"] + "\n\n" + answer["answer"] + "\n"
        for option in ((), ("--stream",)):
            shown = gapless("run", "query", *MODEL, *arguments, "--reasoning", *option)
            self.assertEqual(shown.stdout, whole, option)

    def test_points_of_reasoning_lie_in_its_text(self):
        # Coordinates, and tokens that begin and end them, come oftener than random weights have them.
        bias = [f"--logit-bias={token}={bias}" for token, bias in ((5, 13), (7, 10), (9, 10))]
        reasoning = run("query", "--question", "How many?", "--image", PICTURE, "--max-tokens", "60", "--reasoning",
                        "--temperature", "1.5", "--seed", "4", *bias)["reasoning"]
        self.assertGreater(len(reasoning["grounding"]), 0)
        before = 0
        for part in reasoning["grounding"]:
            self.assertTrue(before <= part["start_idx"] <= part["end_idx"] <= len(reasoning["text"]), part)
            before = part["end_idx"]
            self.assertTrue(part["points"] and all(0 <= value <= 1 for point in part["points"] for value in point), part)

    def test_places_in_the_picture(self):
        arguments = ("--image", PICTURE, "--object", "shape", "--max-objects", "4", "--confidence")
        free = run("point", *arguments)
        # Two coordinates for a point, a size too for a box.
        for ref, num_tokens in (("0.25,0.5", 2), ("0.25,0.5,0.75,1", 3)):
            meant = run("point", *arguments, "--spatial-ref", ref)
            self.assertEqual(meant["metrics"]["input_tokens"], free["metrics"]["input_tokens"] + num_tokens, ref)
            self.assertEqual(len({str(one["points"]) for one in (free, meant)}), 2, ref)
        for ref in ("0.5", "0.5,", "0.5,1.5", "a,b", "0.5,0.5,0.25,0.75", "0.1,0.2,0.3"):
            done = gapless("run", "point", *MODEL, *arguments, "--spatial-ref", ref)
            self.assertEqual(done.returncode, 1, ref)
            self.assertIn(f"'{ref}' is not X,Y", done.stderr)

    def test_a_gaze_is_one_point_or_none(self):
        for eyes in ("0.25,0.5", "0.9,0.1", "0.5,0.5"):
            points = run("point", "--image", PICTURE, "--object", "gaze", "--spatial-ref", eyes)["points"]
            self.assertLessEqual(len(points), 1, eyes)
        face = ("--image", PICTURE, "--object", "gaze", "--spatial-ref", "0.2,0.2,0.4,0.5")
        whole = run("point", *face)
        self.assertLessEqual(len(whole["points"]), 1)
        self.assertGreater(whole["metrics"]["input_tokens"], 20 * 700, "twenty requests")
        self.assertEqual(run("point", *face)["points"], whole["points"], "the same each time")

    def test_who_cannot_reason_says_who_can(self):
        done = gapless("run", "query", "--device", "cpu", "--question", "How many?", "--reasoning")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Moondream 3", done.stderr)
        done = gapless("run", "point", "--image", PICTURE, "--object", "circle", "--reasoning")
        self.assertIn("reasoning is for query", done.stderr)

    def test_info_says_what_it_is(self):
        done = gapless("info", "--model", "random:moondream3")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("from layer 4 on 64 experts of 1024, 8 for each token", "9,268,626,928",
                     "heads scaled by token and position", "decode steps on a GPU: one launch each"):
            self.assertIn(line, done.stdout)
        done = gapless("info", "--model", "random:moondream3", "--kv-cache", "fp8")
        self.assertIn("composed of single ops, because it has experts and an 8-bit cache", done.stdout)

    def test_a_random_model_on_disk_is_the_same_model(self):
        folder = self.folder / "model"
        self.assertEqual(gapless("random-model", "--arch", "moondream3-small", "--seed", "7", "--out", folder).returncode, 0)
        about = gapless("info", "--model", folder).stdout
        self.assertIn("16 experts of 32, 4 for each token", about)


if __name__ == "__main__":
    unittest.main()
