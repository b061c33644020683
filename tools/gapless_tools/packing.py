"""Packs several tasks about one image into one row, and draws the dense targets of the image.

A row is the image prefix (730 positions) and a suffix of SUFFIX slots. Each task's tokens sit next to each other in the
suffix, at positions that start at 730, and see the prefix and the earlier tokens of their own task only: the row gives
the same hidden states as one sequence per task.
"""

from __future__ import annotations

import random

import numpy as np
from tokenizers import Tokenizer

from .config import MoondreamConfig
from .prompts import Task, training_tasks
from .reference_model import coord_bin, size_bin
from .scenes import Scene
from .skills import prompt_ids
from .vocabulary import COLOURS, DENSE_KINDS, DENSE_TEXTS

SUFFIX = 192
IGNORE = -100

_COLOUR_INDEX = {name: i + 1 for i, name in enumerate(COLOURS)}
_KIND_INDEX = {name: i + 1 for i, name in enumerate(DENSE_KINDS)}
_TEXT_INDEX = {name: i + 1 for i, name in enumerate(DENSE_TEXTS)}


class Row:
    """Arrays of one packed suffix, all of length SUFFIX."""

    def __init__(self) -> None:
        self.tokens = np.zeros(SUFFIX, np.int64)
        self.positions = np.zeros(SUFFIX, np.int64)
        self.segments = np.zeros(SUFFIX, np.int64)  # 0 is padding
        self.sees_image = np.zeros(SUFFIX, bool)
        self.targets = np.full(SUFFIX, IGNORE, np.int64)  # next token
        self.coord_in = np.zeros(SUFFIX, np.float32)  # value behind a coord token
        self.size_in = np.zeros((SUFFIX, 2), np.float32)  # values behind a size token
        self.coord_bins = np.full(SUFFIX, -1, np.float32)  # bin to read at this slot, not rounded; -1 is none
        self.size_bins = np.full((SUFFIX, 2), -1, np.float32)
        self.used = 0
        self.num_tasks = 0

    def add(self, task: Task, tokenizer: Tokenizer, config: MoondreamConfig) -> bool:
        """Appends a task; false when it does not fit."""
        special = config.tokenizer
        prompt = prompt_ids(task.skill, task.argument, tokenizer, config)
        first_position = config.prefix_length
        if not task.needs_image:
            prompt, first_position = [special.bos_id, *prompt], 0
        if task.skill in ("query", "caption"):
            answer = tokenizer.encode(task.answer).ids
            values: list[tuple[float, ...]] = [()] * len(answer)
        else:
            answer, values = [], []
            for x0, y0, x1, y1 in task.boxes:
                answer += [special.coord_id, special.coord_id]
                values += [((x0 + x1) / 2,), ((y0 + y1) / 2,)]
                if task.skill == "detect":
                    answer.append(special.size_id)
                    values.append((x1 - x0, y1 - y0))
        length = len(prompt) + len(answer)
        if self.used + length > SUFFIX:
            return False
        start, self.used = self.used, self.used + length
        self.num_tasks += 1
        ids = prompt + answer
        self.tokens[start : self.used] = ids
        self.positions[start : self.used] = first_position + np.arange(length)
        self.segments[start : self.used] = self.num_tasks
        self.sees_image[start : self.used] = task.needs_image
        for i, (token, value) in enumerate(zip([*answer, special.eos_id], [*values, ()])):
            reader = start + len(prompt) - 1 + i  # the slot whose hidden state predicts this token
            self.targets[reader] = token
            if token == special.coord_id:
                self.coord_bins[reader] = coord_bin(value[0])
                self.coord_in[reader + 1] = value[0]
            elif token == special.size_id:
                self.size_bins[reader] = [size_bin(value[0]), size_bin(value[1])]
                self.size_in[reader + 1] = value
        return True


def pack_scene(rng: random.Random, scene: Scene, tokenizer: Tokenizer, config: MoondreamConfig) -> Row:
    row = Row()
    for task in training_tasks(rng, scene, 18):
        row.add(task, tokenizer, config)
    return row


def dense_targets(scene: Scene, grid: int) -> dict[str, np.ndarray]:
    """Per patch [grid * grid]: kind, colour and text class (0 is none) of the topmost item at the patch's centre, and
    the item's box relative to it (left, top, right, bottom distances, normalised to the image)."""
    kind = np.zeros((grid, grid), np.int64)
    colour = np.zeros((grid, grid), np.int64)
    text = np.zeros((grid, grid), np.int64)
    sides = np.zeros((grid, grid, 4), np.float32)
    centres = (np.arange(grid) + 0.5) / grid
    for item in scene.items:
        x0, y0, x1, y1 = scene.normalized_box(item)
        rows = np.flatnonzero((centres > y0) & (centres < y1))
        cols = np.flatnonzero((centres > x0) & (centres < x1))
        cells = np.ix_(rows, cols)
        kind[cells] = _KIND_INDEX[item.kind]
        colour[cells] = _COLOUR_INDEX[item.colour]
        text[cells] = _TEXT_INDEX.get(item.text, 0)
        sides[cells] = np.stack(
            np.broadcast_arrays(
                centres[None, cols] - x0, centres[rows, None] - y0, x1 - centres[None, cols], y1 - centres[rows, None]
            ),
            axis=-1,
        )
    return {
        "kind": kind.reshape(-1),
        "colour": colour.reshape(-1),
        "text": text.reshape(-1),
        "sides": sides.reshape(-1, 4),
    }
