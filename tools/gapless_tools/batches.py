"""Training batches, made by worker processes.

Most batches hold images of the 1x1 tiling: their one local crop equals the global crop, which is encoded once. Every
`tiled_every`-th batch holds fewer images, of sizes that have several local crops, with the crops of all images in
one list of fixed length. The targets of the dense heads are left out where these heads are not trained.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset, get_worker_info

from .config import MoondreamConfig
from .image_crops import make_crops
from .packing import SUFFIX, dense_targets, outlined_patches, pack_scene
from .prompts import Shares
from .scenes import make_scene

ROW_FIELDS = (
    "tokens",
    "positions",
    "segments",
    "sees_image",
    "targets",
    "coord_in",
    "size_in",
    "coord_bins",
    "size_bins",
    "numbers",
    "outlined",
)
MAX_CROPS_OF_IMAGE = 13


class SceneBatches(IterableDataset):
    def __init__(
        self,
        config: MoondreamConfig,
        tokenizer_path: str,
        seed: int,
        batch: int,
        tiled_batch: int,
        tiled_every: int,
        slots: int = SUFFIX,
        shares: Shares = Shares(),
        dense: bool = True,
    ) -> None:
        self.config, self.tokenizer_path, self.seed = config, tokenizer_path, seed
        self.batch, self.tiled_batch, self.tiled_every = batch, tiled_batch, tiled_every
        self.slots, self.shares, self.dense = slots, shares, dense

    def __iter__(self) -> Iterator[dict]:
        torch.set_num_threads(1)
        tokenizer = Tokenizer.from_file(self.tokenizer_path)
        info = get_worker_info()
        worker, step = (info.id, info.num_workers) if info else (0, 1)
        number = worker
        while True:
            yield self.make(number, tokenizer)
            number += step

    def make(self, number: int, tokenizer: Tokenizer) -> dict:
        """Batch `number` of the stream; always the same for a seed."""
        tiled = self.tiled_every > 0 and number % self.tiled_every == self.tiled_every - 1
        count = self.tiled_batch if tiled else self.batch
        size, grid = self.config.vision.crop_size, self.config.vision.grid
        rows: dict[str, list] = {name: [] for name in ROW_FIELDS}
        dense: dict[str, list] = {"kind": [], "colour": [], "text": [], "sides": []} if self.dense else {}
        patches = []
        crops, tilings = [], []
        for i in range(count):
            index = number * 1000 + i
            image, scene = make_scene(self.seed, index, tiled)
            if tiled:
                image_crops, tiling = make_crops(image, self.config.vision)
                crops.append(image_crops)
                tilings.append(tiling)
            else:
                crops.append(np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))[None])
            rng = random.Random(f"tasks/{self.seed}/{index}")
            row = pack_scene(rng, scene, tokenizer, self.config, self.slots, self.shares)
            for name in ROW_FIELDS:
                rows[name].append(getattr(row, name))
            if self.dense:
                for name, value in dense_targets(scene, grid).items():
                    dense[name].append(value)
            if self.config.outlines:
                patches.append(outlined_patches(scene, grid))
        flat = np.concatenate(crops)
        if tiled:
            flat = np.concatenate([flat, np.zeros((count * MAX_CROPS_OF_IMAGE - len(flat), size, size, 3), np.uint8)])
        batch = {name: torch.from_numpy(np.stack(values)) for name, values in rows.items()}
        batch |= {"dense_" + name: torch.from_numpy(np.stack(values)) for name, values in dense.items()}
        if patches:
            batch["patches"] = torch.from_numpy(np.stack(patches))
        batch["crops"] = torch.from_numpy(flat)
        batch["tilings"] = torch.tensor(tilings, dtype=torch.int64)
        return batch
