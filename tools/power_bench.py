#!/usr/bin/env python3
"""What a GPU's power limit does to the bare products of an encode and a prefill, beside `gapless bench forward`.

    tools/power_bench.py [--json bench/results/power-h200.json]

Each point is a CUDA graph of nothing but torch.matmul and scaled_dot_product_attention, in bfloat16, at Moondream 2's
shape: no LayerNorm, bias, GELU, residual, rotary embedding or cache, whose work comes on top in a real step. It is
timed twice, as `gapless bench forward` is with and without --rest-ms:

after rest     single runs, 100 ms apart: the board is cool and may clock as high as it can. Median of 9.
back to back   runs without a pause for a second, after a second of the same: the board holds its power limit by
               lowering its clock. Mean. Power is the board's own energy counter (NVML) over the same second.

8192^3 is the usual ceiling; once more with zeros, whose bits do not toggle, it says how much power is the data's.

Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gapless_tools import bench_result  # noqa: E402
from gapless_tools.config import MoondreamConfig  # noqa: E402
from gapless_tools.gpu_timing import in_graph, milliseconds  # noqa: E402

REST_S, RUNS, HOT_S = 0.1, 9, 1.0
CROPS, PROMPTS, TOKENS = 13, 8, 770


class EnergyCounter:
    """Joules that the board of CUDA device 0 has used since the driver was loaded."""

    def __init__(self) -> None:
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        board = torch.cuda.get_device_properties(0)
        bus = f"{board.pci_domain_id:08x}:{board.pci_bus_id:02x}:{board.pci_device_id:02x}.0"
        self.require(self.nvml.nvmlInit_v2())
        self.require(self.nvml.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(self.device)))

    @staticmethod
    def require(error: int) -> None:
        if error != 0:
            raise RuntimeError(f"NVML error {error}")

    def joules(self) -> float:
        millijoules = ctypes.c_ulonglong()
        self.require(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(millijoules)))
        return millijoules.value * 1e-3


def noise(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * scale


class Work:
    """Calls to capture, and how many operations they are."""

    def __init__(self, run: Callable[[], None], operations: float) -> None:
        self.run, self.operations = run, operations

    def __add__(self, other: Work) -> Work:
        def both() -> None:
            self.run()
            other.run()

        return Work(both, self.operations + other.operations)


def products(rows: int, dim: int, inner: int, layers: int) -> Work:
    """x W^T of qkv, proj, fc1 and fc2, every layer with weights of its own."""
    shapes = [(dim, 3 * dim), (dim, dim), (dim, inner), (inner, dim)]  # in, out
    inputs = [noise(rows, k) for k, _ in shapes]
    weights = [[noise(n, k, scale=0.02) for k, n in shapes] for _ in range(layers)]
    outputs = [torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for _, n in shapes]

    def run() -> None:
        for layer in weights:
            for x, w, y in zip(inputs, layer, outputs, strict=True):
                torch.matmul(x, w.t(), out=y)

    return Work(run, 2.0 * layers * rows * sum(k * n for k, n in shapes))


def attention(sequences: int, length: int, heads: int, dim: int, layers: int) -> Work:
    """Everything sees everything, as in a crop; of a prompt's 770 tokens 730 do."""
    q, k, v = (noise(sequences, heads, length, dim // heads) for _ in range(3))

    def run() -> None:
        for _ in range(layers):
            F.scaled_dot_product_attention(q, k, v)

    return Work(run, 4.0 * layers * sequences * length * length * dim)


def matrix(of: Callable[[int, int], torch.Tensor], size: int = 8192, repeats: int = 4) -> Work:
    a, b = of(size, size), of(size, size)
    out = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(repeats):
            torch.matmul(a, b.t(), out=out)

    return Work(run, 2.0 * repeats * size**3)


def measure(what: str, work: Work, energy: EnergyCounter) -> dict:
    replay = in_graph(work.run)
    torch.cuda.synchronize()
    rested = []
    for _ in range(RUNS):
        time.sleep(REST_S)
        rested.append(milliseconds(replay))
    rest_ms = statistics.median(rested)
    count = max(1, round(HOT_S * 1e3 / rest_ms))
    milliseconds(replay, count)
    joules, begin = energy.joules(), time.monotonic()
    hot_ms = milliseconds(replay, count)
    watts = (energy.joules() - joules) / (time.monotonic() - begin)
    point = {
        "what": what,
        "tflop": round(work.operations / 1e12, 4),
        "rest_ms": {"median": round(rest_ms, 4), "min": round(min(rested), 4), "max": round(max(rested), 4)},
        "back_to_back_ms": round(hot_ms, 4),
        "rest_tflop_per_s": round(work.operations / rest_ms / 1e9, 1),
        "back_to_back_tflop_per_s": round(work.operations / hot_ms / 1e9, 1),
        "watts": round(watts, 1),
        "picojoules_per_operation": round(watts * hot_ms / work.operations * 1e9, 3),
    }
    print(
        f"{what:34s} after rest {rest_ms:7.3f} ms {point['rest_tflop_per_s']:5.0f} TFLOP/s   back to back "
        f"{hot_ms:7.3f} ms {point['back_to_back_tflop_per_s']:5.0f} TFLOP/s  {watts:4.0f} W",
        flush=True,
    )
    return point


def all_points(energy: EnergyCounter) -> list[dict]:
    config = MoondreamConfig()
    vision, text = config.vision, config.text
    patches = vision.num_patches
    encode = products(CROPS * patches, vision.enc_dim, vision.enc_ff_dim, vision.enc_n_layers)
    encode_attention = attention(CROPS, patches, vision.enc_n_heads, vision.enc_dim, vision.enc_n_layers)
    prefill = products(PROMPTS * TOKENS, text.dim, text.inner_dim, text.n_layers)
    prefill_attention = attention(PROMPTS, TOKENS, text.n_heads, text.dim, text.n_layers)
    return [
        measure(what, work, energy)
        for what, work in (
            ("8192^3", matrix(noise)),
            ("8192^3, zeros", matrix(lambda *shape: noise(*shape, scale=0))),
            ("encode, 13 crops: products", encode),
            ("encode, 13 crops: attention", encode_attention),
            ("encode, 13 crops: both", encode + encode_attention),
            ("prefill, 8 x 770: products", prefill),
            ("prefill, 8 x 770: attention", prefill_attention),
            ("prefill, 8 x 770: both", prefill + prefill_attention),
        )
    ]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file to write the result to")
    parser.add_argument("--commit", help="to note in the result, where git cannot be asked")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    result = {
        **bench_result.header(
            "Moondream 2's shapes", "the board's power limit", torch.cuda.get_device_name(), arguments.commit
        ),
        "benchmark": "power",
        "torch": torch.__version__,
        "points": all_points(EnergyCounter()),
    }
    if arguments.json:
        bench_result.write(arguments.json, result)


if __name__ == "__main__":
    main()
