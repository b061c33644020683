"""Makes the weights that models/tiny3 starts its training with out of those of models/tiny.

    python tools/upcycle.py --from models/tiny --model models/tiny3 --pool pool --out start.safetensors

What Moondream 3 has in place of Moondream 2's parts begins as the same function, or nearly so:

* A dense feed-forward becomes groups of experts. Those of a group hold the inner units between them, each scaled by their
  number, as each has an equal share; every group is a copy. The router sends a token to the group of the nearest of as many
  means of what it reads. Experts have no biases: the second product's moves to the attention's projection, which is
  added to the same sum; the first one's moves into the matrix, along the one direction in which the norm's output is constant.
* Tau begins as 1 everywhere.
* A region head of one product behind a norm is trained alone first, on hidden states of the dense model.
* New tokens: a number's embedding begins as the same coordinate's encoding, made as long as a token's, " segment" as " detect", and what opens reasoning
  and its points as the answer separator. A shape's or colour's name without a blank before it, which was only answered so
  far and begins what segment asks for, begins as that with one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from gapless_tools.config import MoondreamConfig, load_config  # noqa: E402
from gapless_tools.feature_pool import PooledBatches  # noqa: E402
from gapless_tools.outlines import PATH_UNITS  # noqa: E402
from gapless_tools.path_grammar import path_numbers  # noqa: E402
from gapless_tools.reference_model import ReferenceModel, Weights, layer_norm, parameter_shapes  # noqa: E402
from gapless_tools.region_fit import fit_region_heads  # noqa: E402
from gapless_tools.training_model import TrainingModel  # noqa: E402
from gapless_tools.vocabulary import COLOURS, KINDS  # noqa: E402

ROUTER_MARGIN = 4.0  # typical, between a token's group and the next one
ROUTER_NOISE = 0.05  # of logits, so that a group's experts are told apart
NEW_TOKEN_BIAS = -6.0


def fold_biases(weights: Weights, name: str) -> torch.Tensor:
    """Leaves block `name` as it is but for biases of its feed-forward, which become 0; returns the first product's matrix.

    z = the norm's output without gain and bias sums to 0, so w = 1 / gain, scaled, has w n = 1 for every n = gain z + bias,
    where the bias is not small along w. So the bias grows by the gain first; attention takes that back.
    """
    gain, bias = weights[name + ".ln.weight"], weights[name + ".ln.bias"]
    up, qkv = weights[name + ".mlp.fc1.weight"], weights[name + ".attn.qkv.weight"]
    weights[name + ".attn.qkv.bias"] -= qkv @ gain
    weights[name + ".attn.proj.bias"] += weights[name + ".mlp.fc2.bias"]
    weights[name + ".ln.bias"] = bias + gain
    constant = 1 / gain
    constant /= constant @ weights[name + ".ln.bias"]
    return up + torch.outer(weights[name + ".mlp.fc1.bias"] - up @ gain, constant)


def means_of(samples: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    """k-means of samples [N, D] -> [count, D]."""
    means = samples[torch.randperm(len(samples), generator=generator)[:count]]
    for _ in range(30):
        nearest = torch.cdist(samples, means).argmin(dim=1)
        means = torch.stack(
            [samples[nearest == i].mean(dim=0) if bool((nearest == i).any()) else means[i] for i in range(count)]
        )
    return means


def router_of(
    samples: torch.Tensor, groups: int, size: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and biases [groups * size]: logits fall with the squared distance from the group's mean."""
    means = means_of(samples, groups, generator)
    rows, bias = 2 * means, -means.square().sum(dim=1)
    rows, bias = rows - rows.mean(dim=0), bias - bias.mean()
    best = (samples @ rows.T + bias).topk(2).values
    scale = ROUTER_MARGIN / (best[:, 0] - best[:, 1]).median()
    shares = torch.bincount((samples @ rows.T + bias).argmax(dim=1), minlength=groups) / len(samples)
    print("  tokens of each group:", [round(float(share), 3) for share in shares])
    rows, bias = (t.repeat_interleave(size, dim=0) * scale for t in (rows, bias))
    noise = torch.randn(rows.shape, generator=generator) * ROUTER_NOISE / samples.norm(dim=1).mean()
    return rows + noise, bias


def experts_of(up: torch.Tensor, down: torch.Tensor, groups: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fc1 [groups * size, 2 * inner, D] and fc2 [groups * size, D, inner] of a dense feed-forward cut in `size`."""
    ups = torch.stack([torch.cat([part, torch.zeros_like(part)]) for part in up.chunk(size)])
    downs = torch.stack(down.chunk(size, dim=1)) * size
    return ups.repeat(groups, 1, 1), downs.repeat(groups, 1, 1)


def with_new_tokens(
    weights: Weights, config: MoondreamConfig, tokenizer: Tokenizer, generator: torch.Generator
) -> None:
    old, dim = weights["model.text.wte"].shape
    added = config.text.vocab_size - old
    embeddings = torch.cat([weights["model.text.wte"], 0.02 * torch.randn((added, dim), generator=generator)])
    numbers = path_numbers(tokenizer, config.text.vocab_size)
    is_new = ~numbers.isnan() & (torch.arange(len(numbers)) >= old)
    encoded = ReferenceModel(config, weights).encode_coord(numbers[is_new, None] / PATH_UNITS)
    # Most of a coordinate's encoding, which is far longer than a token's embedding, is the same for all.
    encoded -= encoded.mean(dim=0)
    length = float(weights["model.text.wte"][config.tokenizer.answer_id].norm())
    embeddings[is_new] += length * encoded / encoded.norm(dim=1, keepdim=True)
    special = config.tokenizer
    segment, detect = (special.templates[skill]["prefix"][1] for skill in ("segment", "detect"))
    alike = [(segment, detect)] + [(id, special.answer_id) for id in (special.thinking_id, special.start_ground_points_id)]
    spread = float(embeddings[:old].std())
    for id, model in alike:
        embeddings[id] = embeddings[model] + spread * torch.randn(dim, generator=generator)
    for word in (*KINDS, *COLOURS):
        alone, inside = tokenizer.token_to_id(word), tokenizer.token_to_id("\u0120" + word)
        if alone is not None and inside is not None:
            embeddings[alone] = embeddings[inside]
    weights["model.text.wte"] = embeddings
    head = weights["model.text.lm_head.weight"]
    weights["model.text.lm_head.weight"] = torch.cat([head, 0.02 * torch.randn((added, dim), generator=generator)])
    bias = torch.full((added,), NEW_TOKEN_BIAS)
    weights["model.text.lm_head.bias"] = torch.cat([weights["model.text.lm_head.bias"], bias])


class Upcycling:
    def __init__(self, args: argparse.Namespace) -> None:
        self.config, self.old_config = load_config(args.model), load_config(args.source)
        self.weights = {k: v.float() for k, v in load_file(args.source / "model.safetensors").items()}
        tokenizer_path = args.model / "tokenizer.json"
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.generator = torch.Generator().manual_seed(args.seed)
        batches = PooledBatches(self.config, str(tokenizer_path), args.pool, args.seed, 4, 512)
        stream = iter(batches)
        self.batches = [next(stream) for _ in range(args.batches)]

    @torch.no_grad()
    def hidden_states(self, config: MoondreamConfig) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of all batches: what each block reads, thinned; and the suffix's last hidden states, whole."""
        model = TrainingModel(config, self.weights, {}, compiled=False)
        inputs: list[list[torch.Tensor]] = [[] for _ in range(config.text.n_layers)]
        last = []
        for batch in self.batches:
            of_blocks: list[torch.Tensor] = []
            with torch.autocast("cpu", dtype=torch.bfloat16):
                last.append(model.forward(batch, of_blocks)["hidden"].float())
            for into, x in zip(inputs, of_blocks):
                used = torch.cat([torch.ones(len(x), config.prefix_length), batch["segments"]], dim=1) > 0
                into.append(x.float()[used][::7])
        return [torch.cat(one) for one in inputs], last

    def add_experts(self, inputs: list[torch.Tensor]) -> None:
        moe = self.config.text.moe
        size = moe.experts_per_token
        groups = moe.num_experts // size
        for layer in range(moe.start_layer, self.config.text.n_layers):
            name = f"model.text.blocks.{layer}"
            print(f"{name}: gains of the norm from {float(self.weights[name + '.ln.weight'].abs().min()):.3f}")
            up = fold_biases(self.weights, name)
            down = self.weights[name + ".mlp.fc2.weight"]
            if up.shape[0] != size * moe.expert_inner_dim:
                raise ValueError(f"{size} experts of {moe.expert_inner_dim} do not hold {up.shape[0]} inner units")
            for part in ("fc1", "fc2"):
                del self.weights[f"{name}.mlp.{part}.weight"], self.weights[f"{name}.mlp.{part}.bias"]
            fc1, fc2 = experts_of(up, down, groups, size)
            self.weights[name + ".mlp.fc1.weight"], self.weights[name + ".mlp.fc2.weight"] = fc1, fc2
            samples = layer_norm(self.weights, name + ".ln", inputs[layer])
            rows, bias = router_of(samples, groups, size, self.generator)
            self.weights[name + ".mlp.router.weight"], self.weights[name + ".mlp.router.bias"] = rows, bias

    def add_tau(self) -> None:
        for name, shape in parameter_shapes(self.config).items():
            if ".tau." in name:
                self.weights[name] = torch.zeros(shape)

    def replace_region_heads(self, last: list[torch.Tensor]) -> None:
        for name in [name for name in self.weights if "_decoder.fc" in name]:
            del self.weights[name]
        for name, shape in parameter_shapes(self.config).items():
            if name.startswith("model.region.ln.") or "_decoder." in name:
                self.weights[name] = torch.ones(shape) if name.endswith("ln.weight") else torch.zeros(shape)
        fit_region_heads(self.weights, self.config, zip(last, self.batches), self.generator)

    def run(self) -> Weights:
        with_new_tokens(self.weights, self.config, self.tokenizer, self.generator)
        self.old_config.text.vocab_size = self.config.text.vocab_size
        inputs, before = self.hidden_states(self.old_config)
        self.add_experts(inputs)
        self.add_tau()
        _, after = self.hidden_states(self.config)
        used = [batch["segments"] > 0 for batch in self.batches]
        a, b = (torch.cat([x[u] for x, u in zip(states, used)]) for states in (before, after))
        print(f"the last hidden states differ by {float((a - b).norm() / a.norm()):.2e} of their norm")
        self.replace_region_heads(after)
        wanted = parameter_shapes(self.config)
        found = {name: tuple(tensor.shape) for name, tensor in self.weights.items()}
        if found != wanted:
            raise ValueError(f"not the model's tensors: {sorted(set(found.items()) ^ set(wanted.items()))}")
        return self.weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="folder of the dense model")
    parser.add_argument("--model", type=Path, required=True, help="folder with the new config.json and tokenizer.json")
    parser.add_argument("--pool", type=Path, required=True, help="of tools/make_feature_pool.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--batches", type=int, default=40, help="of 4 images, to look at hidden states")
    args = parser.parse_args()
    upcycling = Upcycling(args)
    ReferenceModel(upcycling.config, upcycling.run()).save(args.out, torch.float32)


if __name__ == "__main__":
    main()
