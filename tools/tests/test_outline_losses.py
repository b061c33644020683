"""What training says about the shape of an outline besides its path: where it is asked for, and what it costs not to know."""

import os
import random
import signal
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

import train  # noqa: E402
from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.losses import OUTLINE_CLASSES, TURN_UNIT, Deciding, outline_losses, token_losses  # noqa: E402
from gapless_tools.packing import Row, outlined_patches  # noqa: E402
from gapless_tools.prompts import Shares, hollow_segment_task, segment_task, training_tasks_with_segments  # noqa: E402
from gapless_tools.scenes import Item, Scene, make_scene  # noqa: E402
from gapless_tools.vocabulary import DENSE_KINDS  # noqa: E402

TINY3 = Path(__file__).parents[2] / "models" / "tiny3"
CORNERS = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]


def kind_index(kind: str) -> int:
    return 1 + DENSE_KINDS.index(kind)


def drawn(kind: str, box: tuple, hollow: bool = False, turn: float = 0.0) -> Item:
    return Item(kind, "red", box, outline=CORNERS, hollow=hollow, turn=turn)


class WhereTheShapeHasToBeKnown(unittest.TestCase):
    def test_in_a_row_it_is_told_before_the_first_number_and_before_a_hole(self) -> None:
        tokenizer, config = Tokenizer.from_file(str(TINY3 / "tokenizer.json")), load_config(TINY3)
        scene = Scene(100, 100, "plain", items=[drawn("square", (20, 20, 70, 70), hollow=True, turn=0.1)])
        row = Row(200)
        self.assertTrue(row.add(segment_task(random.Random(1), scene), tokenizer, config))
        told = row.outlined[:, 0].nonzero()[0]
        tokens = [row.tokens[slot] for slot in told]
        ends = [tokenizer.token_to_id("M"), tokenizer.token_to_id("Z")]
        self.assertEqual(tokens, [config.tokenizer.coord_id, config.tokenizer.size_id, *ends])
        self.assertGreaterEqual(row.size_bins[told[0], 0], 0, "the size is read where the shape is told first")
        self.assertEqual(list(row.tokens).count(ends[1]), 2, "the second one ends the hole")
        for slot in told:
            self.assertAlmostEqual(row.outlined[slot, 2], 0.1, places=6)
            self.assertEqual(row.outlined[slot, :2].tolist(), [kind_index("square"), 1])

    def test_in_a_picture_it_is_told_of_the_topmost_shape_and_of_no_word(self) -> None:
        items = [
            drawn("square", (0, 0, 60, 60), hollow=True),
            drawn("star", (30, 30, 60, 60), turn=-0.2),
            Item("word", "red", (60, 60, 100, 100), "lamp"),
        ]
        told = outlined_patches(Scene(100, 100, "plain", items=items), 10).reshape(10, 10, 3)
        self.assertEqual(told[1, 1].tolist(), [kind_index("square"), 1, 0])
        self.assertEqual(told[4, 4, :2].tolist(), [kind_index("star"), 0])
        self.assertAlmostEqual(float(told[4, 4, 2]), -0.2, places=6)
        self.assertFalse(told[7:, 7:].any())

    def test_turns_of_drawn_shapes_are_those_of_their_outlines(self) -> None:
        """A square's first corner is the upper left one: turned clockwise it goes to the right along the top."""
        squares = [item for i in range(120) for item in make_scene(8, i)[1].items if item.kind == "square"]
        self.assertGreater(len(squares), 10)
        for item in squares:
            x, y = item.outline[0]
            self.assertEqual(item.turn > 0, x > y, item)


class HollowShapes(unittest.TestCase):
    def test_are_outlined_oftener_where_that_is_asked(self) -> None:
        scene = Scene(100, 100, "plain")
        scene.items = [drawn(k, (20 * i, 0, 20 * i + 15, 15), k == "star") for i, k in enumerate(("square", "star", "cross"))]

        def hollow(share: float) -> int:
            tasks = training_tasks_with_segments(random.Random(3), scene, 300, Shares(1.0, 0.0, hollow=share))
            return sum(task.outlined.hollow for task in tasks)

        self.assertGreater(hollow(1.0), 250)
        self.assertLess(hollow(0.0), 150)

    def test_there_need_not_be_one(self) -> None:
        scene = Scene(100, 100, "plain", items=[drawn("square", (0, 0, 50, 50))])
        self.assertFalse(hollow_segment_task(random.Random(1), scene).outlined.hollow)
        self.assertIsNone(hollow_segment_task(random.Random(1), Scene(100, 100, "plain")))


class Losses(unittest.TestCase):
    def test_a_head_that_reads_the_shape_has_none(self) -> None:
        """States that hold the answer in three places, and a head that reads them there."""
        outlined = torch.zeros(1, 3, 3)
        outlined[0, 0] = torch.tensor([kind_index("square"), 1, TURN_UNIT])
        outlined[0, 1] = torch.tensor([kind_index("circle"), 0, 0])
        states = torch.zeros(1, 3, 8)
        states[0, 0, :2] = torch.tensor([1.0, -1.0])
        states[0, 1, :2] = torch.tensor([-1.0, 1.0])
        states[0, 2] = torch.randn(8, generator=torch.Generator().manual_seed(1)) * 100
        head = {"weight": torch.zeros(OUTLINE_CLASSES, 8), "bias": torch.zeros(OUTLINE_CLASSES)}
        unread = outline_losses(head, states, outlined, "tasks3")
        head["weight"][0, 0] = 20.0
        head["weight"][1, 0] = 0.5
        head["weight"][2 + kind_index("square"), 0] = 20.0
        head["weight"][2 + kind_index("circle"), 1] = 20.0
        read = outline_losses(head, states, outlined, "tasks3")
        self.assertEqual(set(read), {"tasks3_hollow", "tasks3_turn", "tasks3_kind"})
        for name in read:
            self.assertGreater(float(unread[name]), 0.3, name)
            self.assertLess(float(read[name]), 0.01, name)

    def test_what_few_tokens_decide_counts_apart(self) -> None:
        """Of [open, number, number, number, close, coordinate] one prediction at a time is wrong."""
        opening, close, number, other, coordinate = 1, 2, 3, 4, 5
        numbers = torch.tensor([float("nan")] * 3 + [480.0, 960.0, float("nan")])
        weights = {"model.text.post_ln.weight": torch.ones(6), "model.text.post_ln.bias": torch.zeros(6)}
        weights |= {"model.text.lm_head.weight": 9 * torch.eye(6), "model.text.lm_head.bias": torch.zeros(6)}
        targets = torch.tensor([[number, number, number, close, coordinate, 0]])
        batch = {
            "tokens": torch.tensor([[opening, number, number, number, close, coordinate]]),
            "targets": targets,
            "numbers": torch.where(targets == number, 480.0, -1.0),
        }
        for name, deciders in (("begin", [0, 1]), ("hole", [4])):
            for wrong in range(6):
                hidden = torch.nn.functional.one_hot(targets, 6).float()
                hidden[0, wrong] = torch.eye(6)[other]
                loss = token_losses(weights, hidden, batch, numbers, Deciding(opening, close))[name]
                if wrong in deciders:
                    self.assertGreater(float(loss), 1, (name, wrong))
                else:
                    self.assertLess(float(loss), 0.1, (name, wrong))


class Schedule(unittest.TestCase):
    def test_no_time_passes_while_the_process_is_stopped(self) -> None:
        handler = signal.getsignal(signal.SIGCONT)
        try:
            with mock.patch.object(train.time, "time") as now:
                now.return_value = 100.0
                clock = train.TrainingClock(30.0)
                now.return_value = 102.0
                self.assertEqual((clock.advance(), clock.seconds), (2.0, 32.0))
                now.return_value = 500.0
                os.kill(os.getpid(), signal.SIGCONT)
                now.return_value = 501.0
                self.assertEqual((clock.advance(), clock.seconds), (1.0, 33.0))
        finally:
            signal.signal(signal.SIGCONT, handler)

    def test_blocks_below_the_experts_learn_slower_where_that_is_asked(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            options = f"--model {TINY3} --init {TINY3} --out {temporary} --freeze-image --frozen-blocks 2 --lower-lr 0.25 --no-compile"
            training = train.Training(train.parse_args(options.split()))
        scales = {id(p): group["scale"] for group in training.optimizer.param_groups for p in group["params"]}
        weights = training.weights
        self.assertEqual(scales[id(weights["model.text.blocks.2.attn.qkv.weight"])], 0.25)
        self.assertEqual(scales[id(weights["model.text.blocks.4.attn.qkv.weight"])], 1)
        self.assertNotIn(id(weights["model.text.blocks.1.attn.qkv.weight"]), scales)
        self.assertEqual(set(training.outline_heads), {(3, "patches"), (3, "tasks"), (4, "tasks")})
        self.assertTrue(all(id(t) in scales for head in training.outline_heads.values() for t in head.values()))


if __name__ == "__main__":
    unittest.main()
