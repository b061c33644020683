"""Vision features of many scenes on disk, for training what comes behind a frozen vision encoder.

An image is encoded once and read as often as training likes, with other tasks every time. A folder holds
`features.bin` (bfloat16 [images, 2, 729, E]: global and pooled local features), `scenes.pickle` (the scenes, in that order)
and `about.json`.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset, get_worker_info

from .batches import ROW_FIELDS
from .config import MoondreamConfig
from .image_crops import make_crops
from .packing import pack_scene
from .prompts import Shares
from .scenes import Scene, make_scene
from .training_model import TrainingModel, pooled_features


def features_of(model: TrainingModel, image: Image.Image) -> torch.Tensor:
    """[2, 729, E] in bfloat16."""
    crops, tiling = make_crops(image, model.config.vision)
    if tiling == (1, 1):
        crops = crops[:1]  # the local crop equals the global one
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        features = model.encode(torch.from_numpy(crops))
        local = features[0] if len(crops) == 1 else pooled_features(features, [tiling], model.config)[0]
    return torch.stack([features[0], local]).bfloat16()


def write_pool(model: TrainingModel, folder: Path, seed: int, images: int, tiled_every: int) -> None:
    """Every `tiled_every`-th image has several local crops; 0: none has."""
    folder.mkdir(parents=True, exist_ok=True)
    scenes: list[Scene] = []
    with (folder / "features.bin").open("wb") as file:
        for index in range(images):
            tiled = tiled_every > 0 and index % tiled_every == tiled_every - 1
            image, scene = make_scene(seed, index, tiled)
            file.write(features_of(model, image.convert("RGB")).view(torch.int16).numpy().tobytes())
            scenes.append(scene)
            if (index + 1) % 100 == 0:
                print(f"{index + 1} images", flush=True)
    (folder / "scenes.pickle").write_bytes(pickle.dumps(scenes))
    about = {"seed": seed, "images": images, "tiled_every": tiled_every}
    (folder / "about.json").write_text(json.dumps(about) + "\n")


class PooledBatches(IterableDataset):
    """Batches of `batch` images of the pool, in an order of their own each time round, with rows of `slots` tokens."""

    def __init__(
        self,
        config: MoondreamConfig,
        tokenizer_path: str,
        pool: Path,
        seed: int,
        batch: int,
        slots: int,
        shares: Shares = Shares(),
    ) -> None:
        self.config, self.tokenizer_path, self.pool = config, tokenizer_path, pool
        self.seed, self.batch, self.slots, self.shares = seed, batch, slots, shares
        self.scenes: list[Scene] = pickle.loads((pool / "scenes.pickle").read_bytes())

    def __iter__(self) -> Iterator[dict]:
        torch.set_num_threads(1)
        vision = self.config.vision
        shape = (len(self.scenes), 2, vision.num_patches, vision.enc_dim)
        features = np.memmap(self.pool / "features.bin", np.int16, "r", shape=shape)
        tokenizer = Tokenizer.from_file(self.tokenizer_path)
        info = get_worker_info()
        worker, step = (info.id, info.num_workers) if info else (0, 1)
        number = worker
        while True:
            yield self.make(number, tokenizer, features)
            number += step

    def make(self, number: int, tokenizer: Tokenizer, features: np.ndarray) -> dict:
        """Batch `number` of the stream; always the same for a seed."""
        count = len(self.scenes)
        order: dict[int, list[int]] = {}
        rows: dict[str, list] = {name: [] for name in ROW_FIELDS}
        places = []
        for at in range(number * self.batch, (number + 1) * self.batch):
            turn, place = divmod(at, count)
            if turn not in order:
                order[turn] = random.Random(f"order/{self.seed}/{turn}").sample(range(count), count)
            index = order[turn][place]
            rng = random.Random(f"tasks/{self.seed}/{turn}/{index}")
            row = pack_scene(rng, self.scenes[index], tokenizer, self.config, self.slots, self.shares)
            places.append(index)
            for name in ROW_FIELDS:
                rows[name].append(getattr(row, name))
        batch = {name: torch.from_numpy(np.stack(values)) for name, values in rows.items()}
        both = torch.from_numpy(np.stack([features[index] for index in places])).view(torch.bfloat16)
        return batch | {"whole": both[:, 0], "local": both[:, 1], "images": torch.tensor(places)}
