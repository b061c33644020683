"""CUDA graphs of torch calls, and how long the GPU takes for them."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UPS = 3


def in_graph(run: Callable[[], object]) -> Callable[[], object]:
    """What replays `run`'s kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(run: Callable[[], object], times: int = 1) -> float:
    """Of one run, by events, in a row of so many. Waits."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times
