#!/usr/bin/env python3
"""Times transformers' continuous batching at what `gapless bench generate` does: a batch of long answers.

    tools/generate_peer.py --shape llama3-8b [--new-tokens 8192] [--json bench/results/generate-peer-h200.json]

Prompts of random tokens below 16000, greedy, no stop token; bfloat16; random weights, since no published ones are needed
for times. The time is from the first request's creation to the last token of the last answer, as transformers' own benchmark
(benchmark_v2/benchmark_scripts/continuous_batching_overall.py) and `gapless bench generate` take it; graphs are captured
before it begins. Modes: synchronous (requests wait for the host between two steps) and asynchronous batching, both with CUDA
graphs. Attention is what is installed: torch's scaled_dot_product_attention, unless --attention names another.

Needs torch with CUDA, and transformers from 5.17 on.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gapless_tools import bench_result  # noqa: E402

RANDOM_IDS_BELOW = 16000
SHAPES = {
    "llama3-8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 500000.0,
    },
    # To try the script without a GPU.
    "small": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rope_theta": 10000.0,
    },
}  # fmt: skip


def make_model(shape: str, attention: str, device: str):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=131072, tie_word_embeddings=False)
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.set_attn_implementation(f"paged|{attention}")
    return model.eval()


def timed_run(model, args: argparse.Namespace, asynchronous: bool) -> dict:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    below = min(RANDOM_IDS_BELOW, model.config.vocab_size)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, below, (args.prompts, args.prompt_tokens), generator=generator).tolist()
    block = 256
    blocks = args.prompts * -(-(args.prompt_tokens + args.new_tokens + 1) // block) + args.prompts
    batching = ContinuousBatchingConfig(
        use_cuda_graph=model.device.type == "cuda",
        use_async_batching=asynchronous,
        allow_block_sharing=False,
        block_size=block,
        num_blocks=blocks,
        max_batch_tokens=args.prompts * args.prompt_tokens,
        max_requests_per_batch=args.prompts,
    )

    def generate(new_tokens: int) -> float:
        settings = GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=new_tokens, max_length=None
        )
        results = model.generate_batch(
            inputs=prompts, generation_config=settings, continuous_batching_config=batching, record_timestamps=True
        )
        answers = list(results.values())
        counts = {len(answer.generated_tokens) for answer in answers}
        if len(answers) != args.prompts or counts != {new_tokens}:
            raise RuntimeError(f"{len(answers)} answers of {counts} tokens")
        return max(answer.timestamps[-1] for answer in answers) - min(answer.created_time for answer in answers)

    generate(8)  # kernels are loaded, graphs captured
    began = time.perf_counter()
    seconds = generate(args.new_tokens)
    return {
        "mode": "asynchronous" if asynchronous else "synchronous",
        "seconds": round(seconds, 3),
        "with_warm_up_seconds": round(time.perf_counter() - began, 3),
        "tokens": args.prompts * args.new_tokens,
        "tokens_per_s": round(args.prompts * args.new_tokens / seconds, 1),
        "mean_step_ms": round(1e3 * seconds / args.new_tokens, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama3-8b")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=8192)
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit")
    parser.add_argument("--json")
    args = parser.parse_args()
    with torch.no_grad():
        model = make_model(args.shape, args.attention, args.device)
        points = []
        for asynchronous in (False, True):
            if asynchronous and args.device == "cpu":
                continue
            point = timed_run(model, args, asynchronous)
            points.append(point)
            print(point, flush=True)
    if not args.json:
        return
    import transformers

    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    result = bench_result.header(args.shape, "none", name, args.commit) | {
        "benchmark": "generate, transformers",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "attention": args.attention,
        "spread": "one run of each mode",
        "prompts": args.prompts,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "points": points,
    }
    bench_result.write(args.json, result)


if __name__ == "__main__":
    main()
