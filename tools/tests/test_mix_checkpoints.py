"""Weights between a model's and what further training made of it."""

import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1]))

import mix_checkpoints  # noqa: E402


class Mix(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, name: str, trained: list[float], frozen: list[float]) -> str:
        tensors = {"trained": torch.tensor(trained).bfloat16(), "frozen": torch.tensor(frozen).bfloat16()}
        save_file(tensors, self.folder / name)
        return str(self.folder / name)

    def mix(self, share: str, *checkpoints: str) -> dict[str, torch.Tensor]:
        out = self.folder / "out.safetensors"
        mix_checkpoints.main(["--base", str(self.folder), "--share", share, "--out", str(out), *checkpoints])
        return load_file(out)

    def test_is_between_the_base_and_the_mean_of_the_checkpoints(self) -> None:
        self.write("model.safetensors", [0.0, 4.0], [0.1])
        found = self.mix("0.75", self.write("a", [2.0, 0.0], [0.1]), self.write("b", [6.0, 0.0], [0.1]))
        self.assertEqual(found["trained"].tolist(), [3.0, 1.0])
        self.assertEqual(found["trained"].dtype, torch.bfloat16)
        self.assertTrue(torch.equal(found["frozen"], torch.tensor([0.1]).bfloat16()))

    def test_a_checkpoint_of_another_model_is_refused(self) -> None:
        self.write("model.safetensors", [0.0], [0.1])
        save_file({"other": torch.zeros(1)}, self.folder / "a")
        with self.assertRaises(SystemExit):
            self.mix("0.5", str(self.folder / "a"))


if __name__ == "__main__":
    unittest.main()
