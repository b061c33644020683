"""How an image is tiled (Moondream reference, June 2025). Needs no packages, so that scripts/quality runs without torch."""

from __future__ import annotations

import math

from .config import VisionConfig


def select_tiling(height: int, width: int, crop: int, max_crops: int) -> tuple[int, int]:
    """(rows, cols) for an image whose sides, less the two margins, are `height` and `width`."""
    if height <= crop or width <= crop:
        return 1, 1
    min_rows = math.ceil(height / crop)
    min_cols = math.ceil(width / crop)
    if min_rows * min_cols > max_crops:
        ratio = math.sqrt(max_crops / (min_rows * min_cols))
        return max(1, math.floor(min_rows * ratio)), max(1, math.floor(min_cols * ratio))
    rows = max(math.floor(math.sqrt(max_crops * height / width)), min_rows)
    cols = max(math.floor(math.sqrt(max_crops * width / height)), min_cols)
    if rows * cols > max_crops:
        if cols > rows:
            cols = math.floor(max_crops / rows)
        else:
            rows = math.floor(max_crops / cols)
    return max(1, rows), max(1, cols)


def tiling_of_image(width: int, height: int, config: VisionConfig) -> tuple[int, int]:
    """(rows, cols) of local crops for an image of `width` x `height` pixels."""
    margins = 2 * config.overlap_margin * config.enc_patch_size
    window = config.crop_size - margins
    return select_tiling(height - margins, width - margins, window, config.max_crops)
