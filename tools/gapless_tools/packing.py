"""Packs several tasks about one image into one row, and draws the dense targets of the image.

A row is the image prefix (730 positions) and a suffix of a fixed number of slots. Each task's tokens sit next to each
other in the suffix, at positions that start at 730, and see the prefix and the earlier tokens of their own task only: the
row gives the same hidden states as one sequence per task.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from .config import MoondreamConfig
from .outlines import path_of, upright
from .prompts import Shares, Task, training_tasks, training_tasks_with_segments
from .reference_model import coord_bin, size_bin
from .scenes import Box, Scene
from .skills import prompt_ids
from .vocabulary import COLOURS, DENSE_KINDS, DENSE_TEXTS

SUFFIX = 192
MANY_TASKS = 64  # more than fit into any suffix
IGNORE = -100

_COLOUR_INDEX = {name: i + 1 for i, name in enumerate(COLOURS)}
_KIND_INDEX = {name: i + 1 for i, name in enumerate(DENSE_KINDS)}
_TEXT_INDEX = {name: i + 1 for i, name in enumerate(DENSE_TEXTS)}


@dataclass(frozen=True)
class Said:
    """A token of an answer, and what it stands for."""

    token: int
    values: tuple[float, ...] = ()  # of a coord or size token
    number: float = -1  # of a vertex in a path: its neighbours are nearly as right


def said_text(text: str, tokenizer: Tokenizer) -> list[Said]:
    return [Said(token) for token in tokenizer.encode(text).ids]


def said_point(box: Box, config: MoondreamConfig) -> list[Said]:
    x0, y0, x1, y1 = box
    return [Said(config.tokenizer.coord_id, (value,)) for value in ((x0 + x1) / 2, (y0 + y1) / 2)]


def said_box(box: Box, config: MoondreamConfig) -> list[Said]:
    x0, y0, x1, y1 = box
    return [*said_point(box, config), Said(config.tokenizer.size_id, (x1 - x0, y1 - y0))]


def said_path(path: list[str | int], tokenizer: Tokenizer, exact: bool = False) -> list[Said]:
    """`exact`: a number's neighbours are wrong."""
    numbers = [part if isinstance(part, int) and not exact else -1 for part in path]
    return [Said(tokenizer.token_to_id(str(part)), number=number) for part, number in zip(path, numbers)]


def said_reasoning(task: Task, tokenizer: Tokenizer, config: MoondreamConfig) -> list[Said]:
    """Points at what the question is about and says how many there are; nothing without a picture. The answer separator
    ends it."""
    special, said = config.tokenizer, []
    if task.about is not None:
        words, boxes = task.about
        said += [*said_text(f"I point at the {words}:", tokenizer), Said(special.start_ground_points_id)]
        for box in boxes:
            said += said_point(box, config)
        said += [*said_text(" there" if boxes else " no", tokenizer), Said(special.end_ground_id)]
        said += said_text(f", {len(boxes)}.", tokenizer)
    return [*said, Said(special.answer_id)]


def said_by(task: Task, tokenizer: Tokenizer, config: MoondreamConfig) -> list[Said]:
    """The whole answer, without the end token."""
    if task.skill == "segment":
        path = path_of(upright(task.outlined) if task.upright else task.outlined)
        return said_box(task.boxes[0], config) + said_path(path, tokenizer, exact=task.upright)
    if task.skill in ("point", "detect"):
        said_region = said_box if task.skill == "detect" else said_point
        return [one for box in task.boxes for one in said_region(box, config)]
    reasoning = said_reasoning(task, tokenizer, config) if task.reasons else []
    return reasoning + said_text(task.answer, tokenizer)


class Row:
    """Arrays of one packed suffix, all of length `slots`."""

    def __init__(self, slots: int = SUFFIX) -> None:
        self.slots = slots
        self.tokens = np.zeros(slots, np.int64)
        self.positions = np.zeros(slots, np.int64)
        self.segments = np.zeros(slots, np.int64)  # 0 is padding
        self.sees_image = np.zeros(slots, bool)
        self.targets = np.full(slots, IGNORE, np.int64)  # next token
        self.coord_in = np.zeros(slots, np.float32)  # value behind a coord token
        self.size_in = np.zeros((slots, 2), np.float32)  # values behind a size token
        self.coord_bins = np.full(slots, -1, np.float32)  # bin to read at this slot, not rounded; -1 is none
        self.size_bins = np.full((slots, 2), -1, np.float32)
        self.numbers = np.full(slots, -1, np.float32)  # what the next token's number should be; -1: no number
        # What is outlined: kind (0: nothing is), whether it is hollow, turn. At the slots that decide what its path is.
        self.outlined = np.zeros((slots, 3), np.float32)
        self.used = 0
        self.num_tasks = 0

    def add(self, task: Task, tokenizer: Tokenizer, config: MoondreamConfig) -> bool:
        """Appends a task; false when it does not fit."""
        special = config.tokenizer
        prompt = prompt_ids(task.skill, task.argument, tokenizer, config, task.reasons)
        first_position = config.prefix_length
        if not task.needs_image:
            prompt, first_position = [special.bos_id, *prompt], 0
        answer = said_by(task, tokenizer, config)
        length = len(prompt) + len(answer)
        if self.used + length > self.slots:
            return False
        start, self.used = self.used, self.used + length
        self.num_tasks += 1
        self.tokens[start : self.used] = prompt + [said.token for said in answer]
        self.positions[start : self.used] = first_position + np.arange(length)
        self.segments[start : self.used] = self.num_tasks
        self.sees_image[start : self.used] = task.needs_image
        for i, said in enumerate([*answer, Said(special.eos_id)]):
            reader = start + len(prompt) - 1 + i  # the slot whose hidden state predicts this token
            self.targets[reader] = said.token
            self.numbers[reader] = said.number
            if said.token == special.coord_id:
                self.coord_bins[reader] = coord_bin(said.values[0])
                self.coord_in[reader + 1] = said.values[0]
            elif said.token == special.size_id:
                self.size_bins[reader] = [size_bin(value) for value in said.values]
                self.size_in[reader + 1] = said.values
        if task.outlined is not None and not task.upright:
            item, first = task.outlined, start + len(prompt)
            ids = [said.token for said in answer]
            path = ids.index(special.size_id) + 1
            # That which reads the size, the size's own, the path's first command, and the end of the first outline.
            for place in (path - 2, path - 1, path, ids.index(tokenizer.token_to_id("Z"))):
                self.outlined[first + place] = [_KIND_INDEX[item.kind], item.hollow, item.turn]
        return True


def pack_scene(
    rng: random.Random,
    scene: Scene,
    tokenizer: Tokenizer,
    config: MoondreamConfig,
    slots: int = SUFFIX,
    shares: Shares = Shares(),
) -> Row:
    row = Row(slots)
    if not (config.outlines and config.reasons):
        for task in training_tasks(rng, scene, 18):
            row.add(task, tokenizer, config)
        return row
    for task in training_tasks_with_segments(rng, scene, MANY_TASKS, shares):
        if slots - row.used < 40:
            break
        row.add(task, tokenizer, config)
    return row


def outlined_patches(scene: Scene, grid: int) -> np.ndarray:
    """Per patch [grid * grid, 3] what Row.outlined says, of the topmost shape or bar whose box has the patch's centre."""
    found = np.zeros((grid, grid, 3), np.float32)
    centres = (np.arange(grid) + 0.5) / grid
    for item in scene.items:
        x0, y0, x1, y1 = scene.normalized_box(item)
        cells = np.ix_((centres > y0) & (centres < y1), (centres > x0) & (centres < x1))
        found[cells] = [_KIND_INDEX[item.kind], item.hollow, item.turn] if item.outline else 0
    return found.reshape(-1, 3)


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
