#!/usr/bin/env python3
"""Times PyTorch models of Moondream 2's shape on a GPU, to stand beside `gapless bench forward` and `decode`.

    gapless random-model --out build/random-model
    tools/peer_bench.py --model build/random-model [--json bench/results/peers-h200.json] [--skip transformers,compiled]

Two peers, bfloat16, on the checkpoint that `gapless bench --model random:moondream2` makes for itself:

reference      this project's own model (gapless_tools), with torch's scaled_dot_product_attention and a static KV
               cache. `eager` runs op by op; `graph` is the same captured in a CUDA graph; `compiled` is the graph of
               blocks that torch.compile made (default mode, static shapes). Times are the GPU's, by events, medians of
               single runs. Vision includes the patch embedding, not the projector; a prefill is 730 positions that
               see each other and a causal rest, with the logits of the last token; a decode step is all layers, the
               logits and an argmax over a cache of fixed length.
transformers   PhiForCausalLM of the same text shape (parallel blocks, 24 layers, 2048 wide) through
               generate_batch(), its continuous batching, op by op, with CUDA graphs, and with graphs and its
               asynchronous batching. A step's time is the median distance of two tokens between the moment when the
               last sequence has got its first token and the moment when the first sequence ends, so that prefills
               and start-up do not count.

Needs torch with CUDA and safetensors; transformers for the second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gapless_tools import bench_result  # noqa: E402
from gapless_tools.config import MoondreamConfig  # noqa: E402
from gapless_tools.gpu_timing import WARM_UPS, in_graph, milliseconds  # noqa: E402
from gapless_tools.image_crops import normalize, patchify  # noqa: E402
from gapless_tools.reference_model import apply_rope, linear, parameter_shapes, rope_tables  # noqa: E402
from gapless_tools.training_model import block_weights, vision_block  # noqa: E402

DTYPE = torch.bfloat16
PROMPT, CONTEXT = 770, 850
RUNS = 15


def load_weights(folder: Path, config: MoondreamConfig, device: str) -> dict[str, torch.Tensor]:
    """The parameters of `folder`/model.safetensors that a step without regions needs."""
    with safe_open(folder / "model.safetensors", framework="pt", device=device) as file:
        return {
            name: file.get_tensor(name).to(DTYPE)
            for name in parameter_shapes(config)
            if not name.startswith("model.region")
        }


# ---- the reference model with a static cache ----


class Peer:
    def __init__(self, config: MoondreamConfig, weights: dict[str, torch.Tensor]) -> None:
        self.config, self.weights = config, weights
        self.vision = [
            block_weights(weights, f"model.vision.blocks.{i}", ("ln1", "ln2"))
            for i in range(config.vision.enc_n_layers)
        ]
        self.text = [block_weights(weights, f"model.text.blocks.{i}", ("ln",)) for i in range(config.text.n_layers)]
        positions = torch.arange(1024, device="cuda")
        self.cos, self.sin = rope_tables(positions, config.text.head_dim // 2, config.text.rope_theta)

    def cache(self, rows: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (rows, self.config.text.n_heads, 1024, self.config.text.head_dim)
        return [
            (torch.randn(shape, device="cuda", dtype=DTYPE), torch.randn(shape, device="cuda", dtype=DTYPE))
            for _ in self.text
        ]

    def encode(self, crops: torch.Tensor, block: Callable) -> torch.Tensor:
        w, vision = self.weights, self.config.vision
        x = linear(w, "model.vision.patch_emb", patchify(normalize(crops, DTYPE), vision)) + w["model.vision.pos_emb"]
        for layer in self.vision:
            x = block(x, layer, vision.enc_n_heads)
        return F.layer_norm(x, x.shape[-1:], w["model.vision.post_ln.weight"], w["model.vision.post_ln.bias"])

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weights
        n = F.layer_norm(x, x.shape[-1:], w["model.text.post_ln.weight"], w["model.text.post_ln.bias"])
        return linear(w, "model.text.lm_head", n)

    def prefill(self, tokens: torch.Tensor, cache: list, block: Callable) -> torch.Tensor:
        x = F.embedding(tokens, self.weights["model.text.wte"])
        prefix, length = self.config.prefix_length, tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        order = torch.arange(length, device="cuda")
        visible = order[None, :] <= order[prefix:, None]
        for layer, (keys, values) in zip(self.text, cache, strict=True):
            x = block(x, layer, keys, values, self.config.text.n_heads, prefix, cos, sin, visible)
        return self.logits(x[:, -1]).argmax(-1)

    def decode(self, tokens: torch.Tensor, cache: list, block: Callable) -> torch.Tensor:
        x = F.embedding(tokens, self.weights["model.text.wte"])[:, None]
        cos, sin = self.cos[CONTEXT - 1 : CONTEXT], self.sin[CONTEXT - 1 : CONTEXT]
        for layer, (keys, values) in zip(self.text, cache, strict=True):
            x = block(x, layer, keys, values, self.config.text.n_heads, CONTEXT, cos, sin)
        return self.logits(x[:, 0]).argmax(-1)


def heads_of(qkv: torch.Tensor, n_heads: int) -> tuple[torch.Tensor, ...]:
    n, length, width = qkv.shape
    return qkv.view(n, length, 3, n_heads, width // (3 * n_heads)).permute(2, 0, 3, 1, 4).unbind(0)


def finish_block(x, n, attended, w):  # noqa: ANN001, ANN201
    attended = F.linear(attended.transpose(1, 2).flatten(2), w[4], w[5])
    return x + attended + F.linear(F.gelu(F.linear(n, w[6], w[7]), approximate="tanh"), w[8], w[9])


def prefill_block(x, w, keys, values, n_heads, prefix, cos, sin, visible):  # noqa: ANN001, ANN201
    n = F.layer_norm(x, x.shape[-1:], w[0], w[1])
    q, k, v = heads_of(F.linear(n, w[2], w[3]), n_heads)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    keys[:, :, : k.shape[2]] = k
    values[:, :, : k.shape[2]] = v
    image = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix])
    rest = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=visible)
    return finish_block(x, n, torch.cat([image, rest], dim=2), w)


def decode_block(x, w, keys, values, n_heads, context, cos, sin):  # noqa: ANN001, ANN201
    n = F.layer_norm(x, x.shape[-1:], w[0], w[1])
    q, k, v = heads_of(F.linear(n, w[2], w[3]), n_heads)
    q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    keys[:, :, context - 1 : context] = k
    values[:, :, context - 1 : context] = v
    attended = F.scaled_dot_product_attention(q, keys[:, :, :context], values[:, :, :context])
    return finish_block(x, n, attended, w)


def times_ms(run: Callable[[], object]) -> dict[str, float]:
    for _ in range(WARM_UPS):
        run()
    times = sorted(milliseconds(run) for _ in range(RUNS))
    return {
        "median": round(statistics.median(times), 4),
        "p10": round(times[RUNS // 10], 4),
        "p90": round(times[-1 - RUNS // 10], 4),
    }


def reference_points(peer: Peer, with_compiled: bool) -> list[dict]:
    def encode(crops: int) -> Callable:
        pixels = torch.randint(0, 256, (crops, 378, 378, 3), dtype=torch.uint8, device="cuda")
        return lambda block: lambda: peer.encode(pixels, block)

    def prefill(rows: int) -> Callable:
        tokens = torch.randint(0, 50000, (rows, PROMPT), device="cuda")
        cache = peer.cache(rows)
        return lambda block: lambda: peer.prefill(tokens, cache, block)

    def decode(rows: int) -> Callable:
        tokens = torch.randint(0, 50000, (rows,), device="cuda")
        cache = peer.cache(rows)
        return lambda block: lambda: peer.decode(tokens, cache, block)

    plan = [("encode", f"{n} crops", encode(n), vision_block) for n in (1, 5, 13)]
    plan += [("prefill", f"{n} x {PROMPT}", prefill(n), prefill_block) for n in (1, 8)]
    plan += [("decode", f"{n} rows", decode(n), decode_block) for n in (1, 8, 32)]
    points = []
    for what, size, make, block in plan:
        point = {"what": what, "size": size, "eager_ms": times_ms(make(block))}
        point["graph_ms"] = times_ms(in_graph(make(block)))
        if with_compiled:
            torch._dynamo.reset()
            compiled = torch.compile(block, dynamic=False)
            point["compiled_ms"] = times_ms(in_graph(make(compiled)))
        points.append(point)
        print_point(point)
        torch.cuda.empty_cache()
    return points


def print_point(point: dict) -> None:
    kinds = ("eager_ms", "graph_ms", "compiled_ms")
    times = "  ".join(f"{k[:-3]} {point[k]['median']:8.3f} ms" for k in kinds if k in point)
    if point["what"] == "decode":
        best = min(point[k]["median"] for k in kinds if k in point)
        times += f"  {1e3 * int(point['size'].split()[0]) / best:9.1f} tokens/s"
    print(f"{point['what']:8s} {point['size']:>10s}  {times}", flush=True)


# ---- transformers ----


def phi_weights(weights: dict[str, torch.Tensor], num_layers: int) -> dict[str, torch.Tensor]:
    """The text model's parameters under the names of PhiForCausalLM, whose blocks are the same."""
    names = {
        "model.embed_tokens": "model.text.wte",
        "model.final_layernorm": "model.text.post_ln",
        "lm_head": "model.text.lm_head",
    }
    for i in range(num_layers):
        theirs, ours = f"model.layers.{i}", f"model.text.blocks.{i}"
        names[f"{theirs}.input_layernorm"] = f"{ours}.ln"
        names[f"{theirs}.self_attn.dense"] = f"{ours}.attn.proj"
        names[f"{theirs}.mlp.fc1"] = f"{ours}.mlp.fc1"
        names[f"{theirs}.mlp.fc2"] = f"{ours}.mlp.fc2"
    result = {"model.embed_tokens.weight": weights[names.pop("model.embed_tokens")]}
    for kind in ("weight", "bias"):
        for theirs, ours in names.items():
            result[f"{theirs}.{kind}"] = weights[f"{ours}.{kind}"]
        for i in range(num_layers):
            qkv = weights[f"model.text.blocks.{i}.attn.qkv.{kind}"]
            for name, part in zip("qkv", qkv.chunk(3), strict=True):
                result[f"model.layers.{i}.self_attn.{name}_proj.{kind}"] = part
    return result


def phi_model(config: MoondreamConfig, weights: dict[str, torch.Tensor], device: str):  # noqa: ANN201
    from transformers import PhiConfig, PhiForCausalLM

    text = config.text
    phi = PhiConfig(
        vocab_size=text.vocab_size,
        hidden_size=text.dim,
        intermediate_size=text.inner_dim,
        num_hidden_layers=text.n_layers,
        num_attention_heads=text.n_heads,
        max_position_embeddings=text.max_context,
    )
    with torch.device(device):
        model = PhiForCausalLM(phi).to(DTYPE).eval()
    model.load_state_dict(phi_weights(weights, text.n_layers))
    return model


def transformers_points(
    config: MoondreamConfig, weights: dict[str, torch.Tensor], all_rows: list[int]
) -> list[dict]:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = phi_model(config, weights, "cuda")
    model.set_attn_implementation("paged|sdpa")
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=16)
    half = 32
    points = []
    for rows in all_rows:
        generator = torch.Generator().manual_seed(rows)
        prompts = torch.randint(1, 50000, (rows, CONTEXT - half), generator=generator).tolist()
        for name, with_graphs, asynchronous in (
            ("eager", False, False),
            ("graphs", True, False),
            ("graphs, asynchronous", True, True),
        ):
            if name == "eager" and rows != all_rows[0]:
                continue  # the host's time: the same for every number of rows, and long
            batching = ContinuousBatchingConfig(
                use_cuda_graph=with_graphs,
                use_async_batching=asynchronous,
                allow_block_sharing=False,
                max_batch_tokens=8192,
                num_blocks=256,
                max_requests_per_batch=32,
            )

            def seconds(new_tokens: int) -> float:
                results = model.generate_batch(
                    inputs=prompts,
                    generation_config=generation,
                    continuous_batching_config=batching,  # noqa: B023
                    max_new_tokens=new_tokens,
                    record_timestamps=True,
                )
                # When the last sequence got its first token, and when the first one ended.
                stamps = [result.timestamps for result in results.values()]
                counts = {len(result.generated_tokens) for result in results.values()}
                if len(results) != rows or counts != {new_tokens}:
                    raise RuntimeError(f"{len(results)} answers of {counts} tokens")
                begin, end = max(s[0] for s in stamps), min(s[-1] for s in stamps)
                tokens = [t for t in stamps[0] if begin <= t <= end]
                return statistics.median(t - before for before, t in zip(tokens, tokens[1:], strict=False))

            step = seconds(2 * half)
            point = {
                "what": "decode",
                "size": f"{rows} rows",
                "mode": name,
                "step_ms": round(1e3 * step, 4),
                "tokens_per_s": round(rows / step, 1),
            }
            points.append(point)
            print(
                f"transformers {point['size']:>8s} {name:20s} {point['step_ms']:8.3f} ms/step"
                f" {point['tokens_per_s']:9.1f} tokens/s",
                flush=True,
            )
    return points


# Not inference_mode: transformers' loop writes, in a thread of its own, to tensors made here.
@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder that gapless random-model wrote")
    parser.add_argument("--json", help="file to write the result to")
    parser.add_argument("--skip", default="", help="of: compiled, reference, transformers")
    parser.add_argument("--rows", default="1,8,32", help="streams of transformers' points")
    parser.add_argument("--commit", help="to note in the result, where git cannot be asked")
    arguments = parser.parse_args()
    skip = set(arguments.skip.split(","))
    config = MoondreamConfig()
    result = {
        **bench_result.header("random:moondream2", "none", torch.cuda.get_device_name(), arguments.commit),
        "benchmark": "peers",
        "torch": torch.__version__,
        "reference": [],
        "transformers": [],
    }
    weights = load_weights(arguments.model, config, "cuda")
    if "reference" not in skip:
        peer = Peer(config, weights)
        result["reference"] = reference_points(peer, "compiled" not in skip)
        del peer
        torch.cuda.empty_cache()
    if "transformers" not in skip:
        import transformers

        result["transformers_version"] = transformers.__version__
        begin = time.monotonic()
        try:
            result["transformers"] = transformers_points(
                config, weights, [int(n) for n in arguments.rows.split(",")]
            )
        except Exception as error:  # another library's road: say so, keep the rest
            result["transformers_error"] = f"{type(error).__name__}: {error}"
            print("transformers:", result["transformers_error"], f"after {time.monotonic() - begin:.0f} s")
    if arguments.json:
        bench_result.write(arguments.json, result)


if __name__ == "__main__":
    main()
