"""What a training run leaves alone, and what it changes."""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

TOOLS = Path(__file__).parents[1]
sys.path.insert(0, str(TOOLS))

import evaluate  # noqa: E402
import share_tensors  # noqa: E402
import train  # noqa: E402
from gapless_tools.reference_model import load_weights  # noqa: E402
from gapless_tools.skills import Generation  # noqa: E402
from gapless_tools.training_model import unevenness  # noqa: E402

MODELS = TOOLS.parent / "models"


class FrozenImage(unittest.TestCase):
    def test_what_is_shared_with_the_other_model_stays_and_the_rest_is_trained(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            options = f"--model {MODELS / 'tiny3'} --init {MODELS / 'tiny3'} --out {folder / 'run'} --freeze-image"
            options += " --seed 7 --batch 1 --tiled-batch 1 --tiled-every 2 --slots 254 --segment-share 0.5"
            options += " --workers 0 --no-compile --max-steps 2 --warmup-steps 1 --lr 1e-2 --average-seconds 0.1"
            training = train.Training(train.parse_args(options.split()))
            trained = {k for k, w in training.weights.items() if w.requires_grad}
            training.run()
            shutil.copytree(MODELS / "tiny3", folder / "model", symlinks=True)
            share_tensors.main(
                ["--checkpoint", str(folder / "run/checkpoint.safetensors"), "--model", str(folder / "model")]
                + ["--shared", str(MODELS / "tiny")]
            )
            index = "model.safetensors.index.json"
            files = json.loads((folder / "model" / index).read_text())["weight_map"]
            self.assertEqual(files, json.loads((MODELS / "tiny3" / index).read_text())["weight_map"])
            before, after = load_weights(MODELS / "tiny3"), load_file(folder / "run/checkpoint.safetensors")
        self.assertEqual(before.keys(), after.keys())
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        self.assertEqual(moved, trained)
        self.assertFalse([name for name in moved if ".vision." in name or files[name] != "own.safetensors"])
        self.assertGreater(len(moved), 30)
        self.assertTrue(all(bool(tensor.isfinite().all()) for tensor in after.values()))

    def test_the_text_blocks_below_the_experts_are_trained_where_that_is_asked(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            options = f"--model {MODELS / 'tiny3'} --init {MODELS / 'tiny3'} --out {temporary} --freeze-image --frozen-blocks 0"
            options += " --seed 7 --batch 1 --slots 254 --segment-share 1 --workers 0 --no-compile --max-steps 1 --warmup-steps 1"
            options += " --average-seconds 0.1"
            training = train.Training(train.parse_args(options.split()))
            training.run()
            record = json.loads((Path(temporary) / "log.jsonl").read_text().splitlines()[0])
            before, after = load_weights(MODELS / "tiny3"), load_file(Path(temporary) / "checkpoint.safetensors")
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        self.assertIn("model.text.blocks.0.attn.qkv.weight", moved)
        self.assertFalse([name for name in moved if ".vision." in name])
        self.assertLessEqual({"hole", "begin", "patches3_hollow", "tasks3_turn", "tasks4_kind"}, record.keys())


class UnevenUse(unittest.TestCase):
    def test_of_experts(self) -> None:
        even = unevenness(torch.zeros(6, 4), torch.tensor([3, 3, 3, 3]))
        self.assertAlmostEqual(float(even), 1)
        one = unevenness(torch.tensor([[20.0, 0, 0, 0]]).expand(6, 4), torch.tensor([6, 0, 0, 0]))
        self.assertAlmostEqual(float(one), 4, places=3)


class ResponseOfAReasoning(unittest.TestCase):
    def test_without_an_answer_is_an_empty_one(self) -> None:
        found = evaluate.response_of({"id": "1", "skill": "query"}, Generation([], reasoning="I point"))
        self.assertEqual((found["answer"], found["reasoning"]["text"]), ("", "I point"))


if __name__ == "__main__":
    unittest.main()
