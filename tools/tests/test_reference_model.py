"""Properties of the oracle that hold whatever its weights are."""

import math
import sys
import unittest
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.config import MoeConfig, Numerics, config_from_dict, load_config  # noqa: E402
from gapless_tools.reference_model import (  # noqa: E402
    ReferenceModel,
    TextCache,
    apply_rope,
    coord_bin,
    coord_value,
    experts,
    fourier_features,
    initial_weights,
    rope_tables,
    scale_heads,
    size_bin,
    size_value,
)
from gapless_tools.skills import Limits, encode_images, generate_regions, prompt_ids  # noqa: E402

MODEL = Path(__file__).parents[2] / "models" / "tiny"


class Older(unittest.TestCase):
    """Models without a token for coordinates: any token but eos begins an object, and eos ends where it is the largest."""

    def setUp(self) -> None:
        self.config = load_config(MODEL)
        self.config.text.n_layers = 1
        self.config.tokenizer.any_token_is_coord = True
        self.weights = initial_weights(self.config, 1)

    def points(self, bias: dict[int, float]) -> list[int]:
        for token, value in bias.items():
            self.weights["model.text.lm_head.bias"][token] = value
        model = ReferenceModel(self.config, self.weights)
        with torch.no_grad():
            cache = encode_images(model, [])
            return generate_regions(model, cache, [1, 2, 3], False, Limits(max_objects=2)).token_ids

    def test_any_token_begins_an_object(self) -> None:
        coord = self.config.tokenizer.coord_id
        self.assertEqual(self.points({300: 100.0, self.config.tokenizer.eos_id: 90.0, coord: -100.0}), [coord] * 4)

    def test_eos_ends(self) -> None:
        self.assertEqual(self.points({300: 90.0, self.config.tokenizer.eos_id: 100.0}), [])

    def test_spaces_in_front_are_the_models(self) -> None:
        class Words:
            def encode(self, text: str):
                return mock.Mock(ids=[text])

        tokenizer = {"templates": {"query": {"prefix": [], "suffix": []}, "detect": {"prefix": [], "suffix": []}}}
        for question, thing in ((False, True), (True, True), (False, False)):
            tokenizer |= {"question_leading_space": question, "object_leading_space": thing}
            config = config_from_dict({"tokenizer": tokenizer})
            self.assertEqual(prompt_ids("query", "a", Words(), config), [" a" if question else "a"])
            self.assertEqual(prompt_ids("detect", "a", Words(), config), [" a" if thing else "a"])


class PrefixMask(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(0)
        config = load_config(MODEL)
        config.text.n_layers = 2
        self.model = ReferenceModel(config, initial_weights(config, 1))
        self.prefix = 40
        self.image = torch.randn(self.prefix, config.text.dim)
        self.prompt = torch.randn(6, config.text.dim)

    def run_all(self, image: torch.Tensor, prompt: torch.Tensor) -> tuple[TextCache, torch.Tensor]:
        cache = TextCache(2)
        return cache, self.model.decode(torch.cat([image, prompt]), cache, self.prefix)

    def test_prompt_does_not_reach_the_prefix(self) -> None:
        before, _ = self.run_all(self.image, self.prompt)
        changed = self.prompt.clone()
        changed[-1] = torch.randn(changed.shape[-1])
        after, _ = self.run_all(self.image, changed)
        for layer in range(2):
            self.assertTrue(torch.equal(before.keys[layer][:, : self.prefix], after.keys[layer][:, : self.prefix]))
            self.assertTrue(torch.equal(before.values[layer][:, : self.prefix], after.values[layer][:, : self.prefix]))

    def test_last_patch_reaches_bos(self) -> None:
        before, _ = self.run_all(self.image, self.prompt)
        changed = self.image.clone()
        changed[-1] = torch.randn(changed.shape[-1])
        after, _ = self.run_all(changed, self.prompt)
        self.assertTrue(torch.equal(before.keys[0][:, 0], after.keys[0][:, 0]))
        self.assertGreater(float((before.keys[1][:, 0] - after.keys[1][:, 0]).abs().max()), 1e-3)

    def test_prompt_is_causal(self) -> None:
        _, before = self.run_all(self.image, self.prompt)
        changed = self.prompt.clone()
        changed[3] = torch.randn(changed.shape[-1])
        _, after = self.run_all(self.image, changed)
        torch.testing.assert_close(before[: self.prefix + 3], after[: self.prefix + 3])
        self.assertGreater(float((before[self.prefix + 3 :] - after[self.prefix + 3 :]).abs().amax(dim=-1).min()), 1e-3)

    def test_one_prefill_equals_prefix_then_tokens(self) -> None:
        _, whole = self.run_all(self.image, self.prompt)
        cache = TextCache(2)
        self.model.decode(self.image, cache, self.prefix)
        steps = [self.model.decode(row[None], cache, 0) for row in self.prompt]
        torch.testing.assert_close(torch.cat(steps), whole[self.prefix :], rtol=1e-4, atol=1e-4)


class SeveralImages(unittest.TestCase):
    """Image after image through the cache equals one pass under the mask that spells the rule out."""

    def setUp(self) -> None:
        torch.manual_seed(0)
        config = load_config(MODEL)
        config.text.n_layers = 2
        self.model = ReferenceModel(config, initial_weights(config, 1))
        self.image_tokens = 9
        self.embeddings = [torch.randn(self.image_tokens, config.text.dim) for _ in range(3)]
        # encode_images asks for an image's embeddings; here an image is their number.
        self.model.image_embeddings = lambda image, capture=None: self.embeddings[image]  # type: ignore[method-assign]
        self.prompt = torch.randn(5, config.text.dim)

    def whole(self, num_images: int) -> torch.Tensor:
        """One pass: k is visible to q iff k <= q or both belong to one block; BOS belongs to the first image's."""
        n = self.image_tokens
        blocks = [0] + [i for i in range(num_images) for _ in range(n)] + list(range(100, 100 + len(self.prompt)))
        block = torch.tensor(blocks)
        position = torch.arange(len(blocks))
        visible = (position[None] <= position[:, None]) | (block[None] == block[:, None])
        bos = self.model.embed([self.model.config.tokenizer.bos_id])
        x = torch.cat([bos, *self.embeddings[:num_images], self.prompt])
        with mock.patch("gapless_tools.reference_model.prefix_mask", lambda q, k, prefix: visible):
            return self.model.decode(x, TextCache(2), 0)

    def test_blocks_see_themselves_and_what_is_before(self) -> None:
        for num_images in (1, 2, 3):
            cache = encode_images(self.model, list(range(num_images)))
            self.assertEqual(cache.length, 1 + num_images * self.image_tokens)
            prompt = self.model.decode(self.prompt, cache, prefix=0)
            torch.testing.assert_close(prompt, self.whole(num_images)[-len(self.prompt) :], rtol=1e-4, atol=1e-4)

    def test_later_images_do_not_reach_earlier_ones(self) -> None:
        one, two = encode_images(self.model, [0]), encode_images(self.model, [0, 1])
        for layer in range(2):
            self.assertTrue(torch.equal(one.keys[layer], two.keys[layer][:, : one.length]))
        other = encode_images(self.model, [2, 1])
        self.assertGreater(float((two.keys[1][:, one.length :] - other.keys[1][:, one.length :]).abs().max()), 1e-3)


class Pieces(unittest.TestCase):
    def test_rope_depends_on_distance_only(self) -> None:
        q, k = torch.randn(64), torch.randn(64)

        def score(i: int, j: int) -> float:
            cos, sin = rope_tables(torch.tensor([i, j]), 32, 10000.0)
            return float(apply_rope(q[None], cos[:1], sin[:1])[0] @ apply_rope(k[None], cos[1:], sin[1:])[0])

        self.assertAlmostEqual(score(700, 690), score(20, 10), places=3)
        self.assertNotAlmostEqual(score(700, 690), score(20, 15), places=3)

    def test_rope_leaves_the_upper_half(self) -> None:
        x = torch.randn(1, 64)
        cos, sin = rope_tables(torch.tensor([5]), 32, 10000.0)
        turned = apply_rope(x, cos, sin)
        self.assertTrue(torch.equal(turned[:, 32:], x[:, 32:]))
        self.assertAlmostEqual(float(turned[0, 0]), float(x[0, 0] * cos[0, 0] - x[0, 16] * sin[0, 0]), places=5)

    def test_fourier_features_are_cosines_then_sines(self) -> None:
        features = fourier_features(torch.tensor([0.25]), torch.tensor([[1.0, 2.0]]))
        torch.testing.assert_close(features, torch.tensor([0.0, -1.0, 1.0, 0.0]), rtol=0, atol=1e-6)

    def test_linear_sizes(self) -> None:
        config = load_config(MODEL)
        model = ReferenceModel(config, initial_weights(config, 1))
        self.assertEqual(model.size_value(1023), 1.0)
        config.region.linear_sizes = True
        self.assertEqual((model.size_value(0), model.size_value(512)), (0.0, 0.5))

    def test_bins_are_inverse(self) -> None:
        self.assertEqual((coord_value(0), coord_value(1023)), (0.0, 1.0))
        self.assertEqual((size_value(0), size_value(1023)), (2.0**-10, 1.0))
        for index in range(1024):
            self.assertAlmostEqual(coord_bin(coord_value(index)), index, places=6)
            self.assertAlmostEqual(size_bin(size_value(index)), index, places=6)


class Moondream3PartsTest(unittest.TestCase):
    def setUp(self) -> None:
        generator = torch.Generator().manual_seed(5)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.random = random

    def test_experts_are_the_sum_over_each_tokens_choice(self) -> None:
        moe = MoeConfig(num_experts=5, start_layer=0, experts_per_token=2, expert_inner_dim=3)
        weights = {
            "m.router.weight": self.random(5, 4),
            "m.router.bias": self.random(5),
            "m.fc1.weight": self.random(5, 6, 4),
            "m.fc2.weight": self.random(5, 4, 3),
        }
        n = self.random(7, 4)
        mixed = experts(weights, "m", n, moe)
        for t in range(7):
            logits = weights["m.router.weight"] @ n[t] + weights["m.router.bias"]
            best = sorted(range(5), key=lambda e: -logits[e])[:2]
            total = sum(math.exp(logits[e]) for e in best)
            expected = torch.zeros(4)
            for e in best:
                up = weights["m.fc1.weight"][e] @ n[t]
                a, g = up[:3], up[3:]
                gelu = a / 2 * (1 + torch.erf(a / math.sqrt(2)))
                expected += math.exp(logits[e]) / total * (weights["m.fc2.weight"][e] @ (gelu * (g + 1)))
            torch.testing.assert_close(mixed[t], expected)

    def test_equal_logits_choose_the_lowest_experts(self) -> None:
        moe = MoeConfig(num_experts=4, start_layer=0, experts_per_token=2, expert_inner_dim=1)
        fc2 = torch.arange(4.0).reshape(4, 1, 1)  # what an expert is worth
        weights = {
            "m.router.weight": torch.zeros(4, 1),
            "m.router.bias": torch.zeros(4),
            "m.fc1.weight": torch.tensor([[[10.0], [0.0]]] * 4),
            "m.fc2.weight": fc2,
        }
        out = experts(weights, "m", torch.ones(1, 1), moe)
        torch.testing.assert_close(out, torch.tensor([[5.0]]))  # gelu(10) (0 + 1) (0 + 1) / 2

    def test_heads_are_scaled_by_token_and_position_and_keys_are_not(self) -> None:
        weights = {"t.wq": self.random(2, 24), "t.wv": self.random(2, 24), "t.alpha": torch.tensor([0.5, -2.0])}
        qkv = self.random(3, 24)
        positions = torch.tensor([0, 8, 999])
        scaled = scale_heads(weights, "t", qkv, positions, 2, Numerics(tau_gelu="erf", tau_position="f32"))
        torch.testing.assert_close(scaled[:, 8:16], qkv[:, 8:16], rtol=0, atol=0)
        for t, position in enumerate(positions.tolist()):
            u = qkv[t] / 2 * (1 + torch.erf(qkv[t] / math.sqrt(2)))
            for h in range(2):
                s = 1 + (1 / (1 + math.exp(-weights["t.alpha"][h] * math.log(position + 1))) - 0.5)
                for first, products in ((0, "t.wq"), (16, "t.wv")):
                    part = slice(first + 4 * h, first + 4 * h + 4)
                    expected = qkv[t, part] * (torch.tanh(weights[products][h] @ u) + s)
                    torch.testing.assert_close(scaled[t, part], expected)


if __name__ == "__main__":
    unittest.main()
