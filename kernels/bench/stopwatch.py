"""Times operations on their device: median of many calls, each on other data than the one before it."""

import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]

ROUND_MS = 5.0
"""Least time of one timed round on CUDA, as far as MOST_ROUNDS goes: long beside the start of a graph."""
MOST_ROUNDS = 64


def milliseconds(calls: Sequence[Call], device: torch.device, seconds: float, *, waits: bool = False) -> float:
    """Median time of one call, over about `seconds`. `calls` do the same on different buffers and are run in turn.

    On CUDA the calls are replayed as a graph, so the time is the device's alone; `waits`: they wait for the device
    themselves, so they cannot be recorded, and the time includes their launches.
    """
    for call in calls:
        call()
    if device.type == "cuda":
        return _events(calls, device, seconds) if waits else _replays(calls, device, seconds)
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < deadline:
        call = calls[len(times) % len(calls)]
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def _replays(calls: Sequence[Call], device: torch.device, seconds: float) -> float:
    once = _events([lambda: [call() for call in calls]], device, 0.0)
    rounds = max(1, min(MOST_ROUNDS, math.ceil(ROUND_MS / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    return _events([graph.replay], device, seconds) / (rounds * len(calls))


def _events(calls: Sequence[Call], device: torch.device, seconds: float) -> float:
    """Milliseconds between events around each call."""
    times: list[float] = []
    torch.cuda.synchronize(device)
    deadline = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < deadline:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        calls[len(times) % len(calls)]()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)
