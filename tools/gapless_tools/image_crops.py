"""Image to crops: tiling, resize and normalisation (Moondream reference, June 2025, Pillow Lanczos).

An image becomes one global crop and rows x cols local crops that overlap by 2 * margin pixels. The whole image is
resized (its aspect is not kept) to the canvas that the local crops tile exactly.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from .config import VisionConfig
from .tiling import tiling_of_image


def make_crops(image: Image.Image, config: VisionConfig) -> tuple[np.ndarray, tuple[int, int]]:
    """RGB image -> uint8 crops [1 + rows * cols, crop, crop, 3] and (rows, cols). Global crop first, then row-major."""
    rows, cols = tiling_of_image(image.width, image.height, config)
    size = config.crop_size
    margins = 2 * config.overlap_margin * config.enc_patch_size
    window = size - margins
    crops = [np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))]
    canvas_size = (window * cols + margins, window * rows + margins)
    canvas = np.asarray(image.resize(canvas_size, Image.Resampling.LANCZOS))
    for row in range(rows):
        for col in range(cols):
            y, x = row * window, col * window
            crops.append(canvas[y : y + size, x : x + size])
    return np.stack(crops), (rows, cols)


def normalize(crops: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 -> [-1, 1]: (v / 255 - 0.5) / 0.5, every step rounded to `dtype` as the reference does."""
    return ((crops.to(dtype) / 255) - 0.5) / 0.5


def patchify(crops: torch.Tensor, config: VisionConfig) -> torch.Tensor:
    """[n, crop, crop, 3] -> [n, grid * grid, 588]; a patch's elements run channel, then row, then column."""
    n, grid, patch, channels = crops.shape[0], config.grid, config.enc_patch_size, config.in_channels
    x = crops.reshape(n, grid, patch, grid, patch, channels)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(n, grid * grid, config.patch_dim)


def pool_windows(length: int, grid: int) -> list[tuple[int, int]]:
    """Half-open windows of adaptive average pooling from `length` to `grid` cells."""
    return [((i * length) // grid, -((-(i + 1) * length) // grid)) for i in range(grid)]


def stitch(local: torch.Tensor, tiling: tuple[int, int], config: VisionConfig) -> torch.Tensor:
    """Local features [rows * cols, grid * grid, E] -> [19 * rows + 8, 19 * cols + 8, E].

    Inner borders lose `margin` patches on each side, outer borders keep them, so every cell is written once.
    """
    rows, cols = tiling
    grid, margin = config.grid, config.overlap_margin
    step = grid - 2 * margin
    tiles = local.reshape(rows, cols, grid, grid, local.shape[-1])
    out = local.new_zeros(step * rows + 2 * margin, step * cols + 2 * margin, local.shape[-1])
    for r in range(rows):
        y0, y1 = (0 if r == 0 else margin), (grid if r == rows - 1 else grid - margin)
        for c in range(cols):
            x0, x1 = (0 if c == 0 else margin), (grid if c == cols - 1 else grid - margin)
            out[step * r + y0 : step * r + y1, step * c + x0 : step * c + x1] = tiles[r, c, y0:y1, x0:x1]
    return out


def adaptive_pool(features: torch.Tensor, grid: int) -> torch.Tensor:
    """[H, W, E] -> [grid * grid, E]: mean over the window of each cell."""
    rows = pool_windows(features.shape[0], grid)
    cols = pool_windows(features.shape[1], grid)
    cells = [features[y0:y1, x0:x1].mean(dim=(0, 1)) for y0, y1 in rows for x0, x1 in cols]
    return torch.stack(cells)
