"""Captured steps: the whole forward pass of a bucket as one CUDA graph, replayed on whatever its buffers hold."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from quire.worker.device.device import Device, Graph, Pool
from quire.worker.step.inputs import Bucket

LARGEST_MIXED = 512
"""Tokens of the longest mixed step that is captured: beyond, the device works longer than the host takes to launch."""
LARGEST_OF_EXPERTS = 2048
"""The same of a model of experts, which multiplies by few weights and launches more: on an H200 the host took 47 ms
to launch 600 tokens of Qwen3-30B-A3B, and the device 13 to compute them."""

_log = logging.getLogger(__name__)


def decode_buckets(max_rows: int) -> list[Bucket]:
    """Steps of one token a row: 1, 2, 4 and then every eighth number of rows, so that padding stays small."""
    sizes = [size for size in (1, 2, 4, *range(8, max_rows, 8)) if size < max_rows]
    return [Bucket(size, size) for size in (*sizes, max_rows)]


def mixed_buckets(max_tokens: int, max_rows: int, largest: int = LARGEST_MIXED) -> list[Bucket]:
    """Steps with prompt chunks: four sizes for each doubling of tokens, so that padding is a fifth at most; beyond 512,
    where the device works long for each, eight. The last is the longest, which every full step is."""
    largest, sizes, base = min(max_tokens, largest), [], 16
    while base < largest:
        parts = 4 if base < LARGEST_MIXED else 8
        sizes += [base * part // parts for part in range(parts, 2 * parts)]
        base *= 2
    return [Bucket(size, max_rows, True) for size in (*(size for size in sizes if size < largest), largest)]


class CapturedSteps(Protocol):
    """Forward passes that the device recorded before the first request."""

    def capture(
        self, run: Callable[[Bucket], torch.Tensor], hidden_size: int, dtype: torch.dtype, most: int | None = None
    ) -> None:
        """Record what `run` makes of a bucket: its hidden states [T, hidden]. `most`: recordings, of the largest."""
        ...

    def fitting(self, num_tokens: int, num_rows: int) -> Bucket | None:
        """The size as which a step of so many tokens and rows is replayed; None: it is not, run it as it is."""
        ...

    def replay(self, bucket: Bucket) -> torch.Tensor:
        """Queue the work of a fitting bucket; its hidden states, valid until the next replay."""
        ...

    def close(self) -> None:
        """Let go of what was recorded."""
        ...


class Graphs:
    """Graphs of buckets, in one memory pool. Without buckets every step runs operation by operation."""

    def __init__(self, device: Device, decode: Sequence[Bucket] = (), mixed: Sequence[Bucket] = ()) -> None:
        self._device = device
        self._decode = sorted(decode)
        self._mixed = sorted(mixed)
        self._captured: dict[Bucket, tuple[Graph, torch.Tensor]] = {}

    def capture(
        self, run: Callable[[Bucket], torch.Tensor], hidden_size: int, dtype: torch.dtype, most: int | None = None
    ) -> None:
        """Capture the buckets, or `most` of them, the largest first: the smaller ones then live in the memory it took.

        `run` queues a bucket's work and returns its hidden states [T, hidden].
        """
        buckets = sorted({*self._decode, *self._mixed}, reverse=True)[:most]
        if not buckets:
            return
        # results are kept out of the pool, where the next graph's work would lie over them
        kept = torch.empty((buckets[0].num_tokens, hidden_size), dtype=dtype, device=self._device.torch)
        pool: Pool | None = None
        for bucket in buckets:
            result = kept[: bucket.num_tokens]

            def step(bucket: Bucket = bucket, result: torch.Tensor = result) -> None:
                result.copy_(run(bucket))

            step()  # compiles what the bucket needs, outside of the capture
            self._device.synchronize()
            graph = self._device.capture(step, pool)
            pool = graph.pool()
            self._captured[bucket] = graph, result
        for graph, _ in self._captured.values():
            graph.replay()  # the first replay brings the graph to the device
        self._device.synchronize()
        _log.info("captured %d graphs, the largest of %d tokens", len(buckets), buckets[0].num_tokens)

    def fitting(self, num_tokens: int, num_rows: int) -> Bucket | None:
        """The smallest captured bucket that holds the step; None: run it as it is."""
        buckets = self._decode if num_tokens == num_rows else self._mixed
        large_enough = (bucket for bucket in buckets if num_tokens <= bucket.num_tokens and num_rows <= bucket.num_rows)
        bucket = next(large_enough, None)
        return bucket if bucket in self._captured else None

    def replay(self, bucket: Bucket) -> torch.Tensor:
        """Queue the bucket's work; its hidden states, valid until the next replay."""
        graph, result = self._captured[bucket]
        graph.replay()
        return result

    def close(self) -> None:
        """Let go of the graphs: those that recorded a collective must be gone before their group is."""
        self._device.synchronize()
        for graph, _ in self._captured.values():
            graph.reset()
        self._captured.clear()
