"""Tiling, stitching, pooling and normalisation against values worked out by hand."""

import sys
import unittest
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.config import VisionConfig  # noqa: E402
from gapless_tools.image_crops import (
    adaptive_pool,
    make_crops,
    normalize,
    pool_windows,
    stitch,
    tiling_of_image,
)  # noqa: E402

VISION = VisionConfig()


class Tiling(unittest.TestCase):
    def test_known_sizes(self) -> None:
        table = {
            (378, 378): (1, 1),
            (379, 379): (3, 3),
            (800, 600): (2, 4),
            (600, 800): (4, 2),
            (1024, 768): (3, 4),
            (768, 1024): (4, 3),
            (1920, 1080): (2, 4),
            (300, 2000): (1, 1),
            (4000, 3000): (2, 4),
            (640, 480): (2, 4),
            (1000, 1000): (3, 3),
            (8000, 600): (1, 13),
            (17682, 379): (1, 20),
        }
        for (width, height), tiling in table.items():
            self.assertEqual(tiling_of_image(width, height, VISION), tiling, (width, height))

    def test_crops_cover_the_canvas(self) -> None:
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8))
        crops, tiling = make_crops(image, VISION)
        self.assertEqual((crops.shape, tiling), ((9, 378, 378, 3), (2, 4)))
        # Neighbours overlap by 112 pixels.
        np.testing.assert_array_equal(crops[1][:, 266:], crops[2][:, :112])
        np.testing.assert_array_equal(crops[1][266:], crops[5][:112])


class Stitching(unittest.TestCase):
    def test_every_cell_comes_from_its_tile(self) -> None:
        rows, cols = 2, 4
        sources = torch.arange(rows * cols * 729, dtype=torch.float32).view(rows * cols, 729, 1)
        stitched = stitch(sources, (rows, cols), VISION)[..., 0].long()
        self.assertEqual(tuple(stitched.shape), (46, 84))
        for y in range(46):
            for x in range(84):
                r = min(max((y - 4) // 19, 0), rows - 1)
                c = min(max((x - 4) // 19, 0), cols - 1)
                self.assertEqual(int(stitched[y, x]), ((r * cols + c) * 27 + y - 19 * r) * 27 + x - 19 * c)


class Pooling(unittest.TestCase):
    def test_windows(self) -> None:
        self.assertEqual(pool_windows(27, 27), [(i, i + 1) for i in range(27)])
        self.assertEqual(pool_windows(46, 27)[:4], [(0, 2), (1, 4), (3, 6), (5, 7)])
        self.assertEqual(pool_windows(46, 27)[-1], (44, 46))
        self.assertEqual({b - a for a, b in pool_windows(84, 27)}, {4})

    def test_equals_torch(self) -> None:
        x = torch.randn(46, 84, 5)
        expected = F.adaptive_avg_pool2d(x.permute(2, 0, 1), 27).flatten(1).T
        torch.testing.assert_close(adaptive_pool(x, 27), expected)


class Normalisation(unittest.TestCase):
    def test_bfloat16_steps(self) -> None:
        table = normalize(torch.arange(256, dtype=torch.uint8), torch.bfloat16).float()
        for value, expected in {
            0: -1.0,
            1: -0.9921875,
            2: -0.984375,
            127: -0.00390625,
            128: 0.0078125,
            255: 1.0,
        }.items():
            self.assertEqual(float(table[value]), expected)


if __name__ == "__main__":
    unittest.main()
