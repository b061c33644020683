"""The packed training model and the reference model must agree, task by task."""

import sys
import unittest
from pathlib import Path

import torch
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from gapless_tools.batches import SceneBatches  # noqa: E402
from gapless_tools.config import load_config  # noqa: E402
from gapless_tools.reference_model import ReferenceModel, TextCache, initial_weights  # noqa: E402
from gapless_tools.scenes import make_scene  # noqa: E402
from gapless_tools.skills import encode_image  # noqa: E402
from gapless_tools.training_model import TrainingModel, dense_head_weights  # noqa: E402

MODEL = Path(__file__).parents[2] / "models" / "tiny"


class PackedEqualsReference(unittest.TestCase):
    def check(self, tiled: bool) -> None:
        torch.manual_seed(0)
        config = load_config(MODEL)
        config.vision.enc_n_layers = config.text.n_layers = 2
        weights = initial_weights(config, 3)
        heads = {"vision": dense_head_weights(config.vision.enc_dim, 1), "text": dense_head_weights(config.text.dim, 2)}
        tokenizer_path = MODEL / "tokenizer.json"
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

    def test_single_crop(self) -> None:
        self.check(tiled=False)

    def test_tiled(self) -> None:
        self.check(tiled=True)


if __name__ == "__main__":
    unittest.main()
