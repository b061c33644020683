"""What tools/upcycle.py begins with is the dense model's function."""

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.config import MoeConfig, load_config  # noqa: E402
from gapless_tools.reference_model import ReferenceModel, TextCache, initial_weights  # noqa: E402
from gapless_tools.region_fit import linear_head  # noqa: E402
from upcycle import experts_of, fold_biases, means_of, router_of  # noqa: E402

MODEL = Path(__file__).parents[2] / "models" / "tiny"
BLOCK = "model.text.blocks.0"


class Upcycle(unittest.TestCase):
    def test_experts_give_what_the_dense_block_gave(self) -> None:
        generator = torch.Generator().manual_seed(1)
        config = load_config(MODEL)
        config.text.n_layers = 1
        weights = initial_weights(config, 5)
        for name in weights:
            if name.startswith(BLOCK) and weights[name].dim() == 1:
                weights[name] = weights[name] + 0.2 * torch.randn(weights[name].shape, generator=generator)
        x = torch.randn(40, config.text.dim, generator=generator)
        with torch.no_grad():
            dense = ReferenceModel(config, dict(weights)).decode(x, TextCache(1), prefix=40)
            up = fold_biases(weights, BLOCK)
            fc1, fc2 = experts_of(up, weights[BLOCK + ".mlp.fc2.weight"], groups=3, size=4)
            for part in ("fc1", "fc2"):
                del weights[f"{BLOCK}.mlp.{part}.bias"]
            weights |= {BLOCK + ".mlp.fc1.weight": fc1, BLOCK + ".mlp.fc2.weight": fc2}
            samples = torch.randn(300, config.text.dim, generator=generator)
            rows, bias = router_of(samples, 3, 4, generator)
            self.assertEqual(tuple(rows.shape), (12, config.text.dim))
            # Equal shares: the noise that tells experts apart is left out.
            weights[BLOCK + ".mlp.router.weight"] = rows.view(3, 4, -1).mean(dim=1).repeat_interleave(4, dim=0)
            weights[BLOCK + ".mlp.router.bias"] = bias
            config.text.moe = MoeConfig(12, 0, 4, 256)
            sparse = ReferenceModel(config, weights).decode(x, TextCache(1), prefix=40)
        # An expert's GELU is the exact one, the dense block's the tanh form.
        self.assertLess(float((sparse - dense).norm() / (dense - x).norm()), 2e-3)

    def test_means_part_what_lies_apart(self) -> None:
        generator = torch.Generator().manual_seed(2)
        places = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
        samples = (places[:, None] + 0.1 * torch.randn(3, 50, 2, generator=generator)).flatten(0, 1)
        for seed in range(9):
            means = means_of(samples, 3, torch.Generator().manual_seed(seed))
            if float(torch.cdist(places, means).min(dim=1).values.max()) < 0.1:
                return
        self.fail("no start leads to the three places")

    def test_a_head_learns_a_linear_bin(self) -> None:
        generator = torch.Generator().manual_seed(3)
        inputs = torch.randn(3000, 16, generator=generator)
        bins = (128 + 40 * inputs[:, 3]).clamp(0, 255)
        start = (torch.zeros(256, 16), torch.zeros(256))
        weight, bias = linear_head(inputs, bins, start, 4.0, "test", generator)
        found = (inputs @ weight.T + bias).argmax(dim=1)
        self.assertLess(float((found - bins).abs().median()), 25)


if __name__ == "__main__":
    unittest.main()
