"""The packed training model and the reference model must agree, task by task."""

import sys
import tempfile
import unittest
from pathlib import Path

import torch
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.batches import SceneBatches  # noqa: E402
from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.feature_pool import PooledBatches, write_pool  # noqa: E402
from gapless_tools.losses import region_logits  # noqa: E402
from gapless_tools.reference_model import ReferenceModel, TextCache, experts, initial_weights  # noqa: E402
from gapless_tools.scenes import make_scene  # noqa: E402
from gapless_tools.skills import encode_image  # noqa: E402
from gapless_tools.training_model import TrainingModel, chosen_experts, dense_head_weights  # noqa: E402

MODELS = Path(__file__).parents[2] / "models"


class PackedEqualsReference(unittest.TestCase):
    def check(self, tiled: bool, name: str = "tiny") -> None:
        torch.manual_seed(0)
        folder = MODELS / name
        config = load_config(folder)
        config.vision.enc_n_layers = config.text.n_layers = 2
        if config.text.moe:
            config.text.moe.start_layer = 1
        weights = initial_weights(config, 3)
        heads = {"vision": dense_head_weights(config.vision.enc_dim, 1), "text": dense_head_weights(config.text.dim, 2)}
        tokenizer_path = folder / "tokenizer.json"
        number = 1 if tiled else 0
        batch = SceneBatches(config, str(tokenizer_path), 5, 2, 2, 2).make(
            number, Tokenizer.from_file(str(tokenizer_path))
        )
        model = ReferenceModel(config, weights)
        with torch.no_grad():
            packed = TrainingModel(config, weights, heads, compiled=False).forward(batch)["hidden"]
        for i in range(2):
            image, _ = make_scene(5, number * 1000 + i, tiled)
            with torch.no_grad():
                with_image = encode_image(model, image)
            segments = batch["segments"][i]
            self.assertGreater(int(segments.max()), 5)
            for segment in range(1, int(segments.max()) + 1):
                slots = (segments == segment).nonzero().flatten()
                sees = bool(batch["sees_image"][i, slots[0]])
                cache = with_image.copy() if sees else TextCache(config.text.n_layers)
                x = model.embed(batch["tokens"][i, slots].tolist())
                for j, slot in enumerate(slots.tolist()):
                    if batch["tokens"][i, slot] == config.tokenizer.coord_id:
                        x[j] = model.encode_coord(batch["coord_in"][i, slot][None])
                    if batch["tokens"][i, slot] == config.tokenizer.size_id:
                        x[j] = model.encode_size(batch["size_in"][i, slot])
                with torch.no_grad():
                    hidden = model.decode(x, cache, prefix=0)
                torch.testing.assert_close(packed[i, slots], hidden, rtol=2e-4, atol=2e-4)
                bins = region_logits(weights, "coord", packed[i, slots])
                torch.testing.assert_close(bins, model.coord_logits(hidden), rtol=2e-4, atol=2e-4)

    def test_single_crop(self) -> None:
        self.check(tiled=False)

    def test_tiled(self) -> None:
        self.check(tiled=True)

    def test_experts_scaled_heads_and_normalised_region_heads(self) -> None:
        self.check(tiled=False, name="tiny3")

    def test_frozen_blocks_may_be_computed_before(self) -> None:
        config = load_config(MODELS / "tiny3")
        config.vision.enc_n_layers, config.text.n_layers = 1, 3
        weights = initial_weights(config, 4)
        tokenizer_path = MODELS / "tiny3/tokenizer.json"
        batch = SceneBatches(config, str(tokenizer_path), 5, 2, 2, 0).make(0, Tokenizer.from_file(str(tokenizer_path)))
        for layers in (1, 2):
            config.text.moe.start_layer = layers
            weights |= {k: v for k, v in initial_weights(config, 4).items() if k not in weights or "mlp" in k}
            model = TrainingModel(config, weights, {}, compiled=False)
            with torch.no_grad():
                whole = model.encode(batch["crops"])
                hidden = model.forward(batch | {"whole": whole, "local": whole})["hidden"]
                above = model.above(batch, model.prefix_below(whole, whole, layers))
            used = batch["segments"] > 0
            error = (above - hidden)[used].norm() / hidden[used].norm()
            self.assertLess(float(error), 0.01, "the prefix is rounded to bfloat16")
            self.assertGreater(float(error), 0)


class ExpertsInOneProductEach(unittest.TestCase):
    def test_gradients_are_those_of_the_reference(self) -> None:
        config = load_config(MODELS / "tiny3")
        name = f"model.text.blocks.{config.text.moe.start_layer}.mlp"
        weights = {k: v for k, v in initial_weights(config, 6).items() if k.startswith(name)}
        weights["n"] = torch.randn(40, config.text.dim, generator=torch.Generator().manual_seed(1))
        aim = torch.randn(40, config.text.dim, generator=torch.Generator().manual_seed(2))
        for tensor in weights.values():
            tensor.requires_grad_()
        gradients = []
        for fed in (
            experts(weights, name, weights["n"], config.text.moe),
            chosen_experts(weights["n"], weights, name, config.text.moe)[0],
        ):
            gradients.append(torch.autograd.grad((fed - aim).square().sum(), list(weights.values())))
        for key, wanted, found in zip(weights, *gradients):
            self.assertGreater(float(wanted.abs().max()), 0, key)
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=key)


class FeaturesOfAPool(unittest.TestCase):
    def test_they_are_those_of_the_images(self) -> None:
        config = load_config(MODELS / "tiny3")
        config.vision.enc_n_layers = 1
        weights = initial_weights(config, 3)
        model = TrainingModel(config, weights, {}, compiled=False)
        reference = ReferenceModel(config, weights)
        with tempfile.TemporaryDirectory() as folder:
            write_pool(model, Path(folder), seed=5, images=4, tiled_every=2)
            batches = PooledBatches(config, str(MODELS / "tiny3/tokenizer.json"), Path(folder), 9, 4, 256)
            first, second = (batch for _, batch in zip(range(2), batches))
        self.assertFalse(torch.equal(first["tokens"], second["tokens"]), "the same tasks again")
        for index in range(4):
            image, _ = make_scene(5, index, index % 2 == 1)
            stages: dict[str, torch.Tensor] = {}
            with torch.no_grad():
                reference.image_embeddings(image, stages)
            close = [
                torch.allclose(whole.float(), stages["vision.post_ln"][0], atol=0.1)
                and torch.allclose(local.float(), stages["vision.pooled"], atol=0.1)
                for whole, local in zip(first["whole"], first["local"])
            ]
            self.assertEqual(sum(close), 1, index)


if __name__ == "__main__":
    unittest.main()
