"""The scene generator and the scoring."""

import random
import sys
import unittest
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.metrics import Tally, box_fits, iou, num_matched, point_fits  # noqa: E402
from gapless_tools.prompts import count_task, find_items, region_task, training_tasks  # noqa: E402
from gapless_tools.scenes import MAX_OVERLAP, Item, Scene, make_scene, overlap_of  # noqa: E402


class Scenes(unittest.TestCase):
    def test_same_seed_same_scene(self) -> None:
        for tiled in (False, True):
            a, b = make_scene(3, 17, tiled), make_scene(3, 17, tiled)
            self.assertTrue(np.array_equal(np.asarray(a[0]), np.asarray(b[0])))
            self.assertEqual(a[1], b[1])
            self.assertNotEqual(a[1], make_scene(4, 17, tiled)[1])

    def test_items_lie_inside_and_apart(self) -> None:
        for index in range(60):
            image, scene = make_scene(5, index, index % 3 == 0)
            self.assertEqual(image.size, (scene.width, scene.height))
            self.assertEqual(scene.items, sorted(scene.items, key=lambda item: item.centre))
            for i, item in enumerate(scene.items):
                x0, y0, x1, y1 = item.box
                self.assertTrue(0 <= x0 < x1 <= scene.width and 0 <= y0 < y1 <= scene.height, item)
                for other in scene.items[:i]:
                    self.assertLessEqual(overlap_of(item.box, other.box), MAX_OVERLAP + 0.02)

    def test_absent_objects_are_absent(self) -> None:
        for index in range(40):
            _, scene = make_scene(6, index)
            task = region_task(random.Random(index), scene, "detect", absent=True)
            self.assertEqual(task.boxes, [])
            self.assertGreater(len(training_tasks(random.Random(index), scene, 9)), 8)

    def test_counts(self) -> None:
        box = (0.0, 0.0, 10.0, 10.0)
        scene = Scene(
            100,
            100,
            "plain",
            items=[Item("star", "red", box), Item("star", "blue", box), Item("word", "red", box, "lamp")],
        )
        self.assertEqual(len(find_items(scene, None, "shape")), 2)
        self.assertEqual(len(find_items(scene, "red", "object")), 1)
        for i in range(30):
            task = count_task(random.Random(i), scene)
            if "star" in task.argument and "red" not in task.argument and "blue" not in task.argument:
                self.assertIn(task.answer, "02")


class Metrics(unittest.TestCase):
    def test_iou(self) -> None:
        self.assertAlmostEqual(iou((0, 0, 2, 2), (1, 0, 3, 2)), 1 / 3)
        self.assertEqual(iou((0, 0, 1, 1), (1, 1, 2, 2)), 0)

    def test_matching_is_the_largest(self) -> None:
        # The first point fits both boxes, the second only the first box.
        boxes = [(0.0, 0.0, 0.6, 1.0), (0.4, 0.0, 1.0, 1.0)]
        self.assertEqual(num_matched([(0.5, 0.5), (0.1, 0.5)], boxes, point_fits), 2)
        self.assertEqual(num_matched([(0.1, 0.5), (0.2, 0.5)], boxes, point_fits), 1)

    def test_f1_counts_misses_and_inventions(self) -> None:
        tally = Tally()
        tally.add_regions([(0, 0, 1, 1), (5, 5, 6, 6)], [(0, 0, 1, 1)], box_fits)
        tally.add_regions([], [(0, 0, 1, 1)], box_fits)
        self.assertAlmostEqual(tally.f1, 2 / 4)
        self.assertEqual(tally.exact, 0)


if __name__ == "__main__":
    unittest.main()
