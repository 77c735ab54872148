"""A scheduler's hand in a few lines: plans for a runner in this process."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import Admit, StepPlan, StepResult
from quire.proto.transport.wire import ints
from quire.worker.step.runner import Runner


class Hand:
    """Sequences by slot; blocks are handed out once, so slots are many and lengths short."""

    def __init__(
        self,
        runner: Runner,
        block_size: int | Sequence[int],
        watch: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """`block_size`: or that of each KV group. `watch`: every launch runs inside one."""
        self.runner = runner
        self._watch = watch
        self._block_sizes = (block_size,) if isinstance(block_size, int) else tuple(block_size)
        self._next_block = 0
        self._known: dict[int, int] = {}
        self._computed: dict[int, int] = {}
        self._num_blocks: dict[int, list[int]] = {}
        """By KV groups."""
        self._admits: list[Admit] = []

    def admit(self, slot: int, tokens: Sequence[int], params: SamplingParams, room: int = 0, **more: Any) -> None:
        """`room`: further tokens for which blocks are reserved at once; `more`: further fields of `Admit`."""
        tables = [self._take(-(-(len(tokens) + room) // size)) for size in self._block_sizes]
        self._known[slot], self._computed[slot], self._num_blocks[slot] = len(tokens), 0, list(map(len, tables))
        admit = Admit(slot, ints(tokens), len(tokens), 0, 0, params, tuple(map(ints, tables)), **more)
        self._admits.append(admit)

    def run(self, rows: Sequence[tuple[int, int]], releases: Sequence[int] = (), **changes: Any) -> StepResult:
        """One step of (slot, tokens to run), collected. `changes`: further fields of the plan."""
        rows = sorted(rows, key=lambda row: row[1] > 1)
        appends, samples = [[] for _ in self._block_sizes], []
        for slot, count in rows:
            end = self._computed[slot] + count
            held = self._num_blocks[slot]
            for group, size in enumerate(self._block_sizes):
                while held[group] * size < end:
                    appends[group] += [slot, held[group], *self._take(1)]
                    held[group] += 1
            self._computed[slot] = end
            samples.append(end == self._known[slot])
            self._known[slot] += samples[-1]
        slots, counts = zip(*rows, strict=True) if rows else ((), ())
        plan = StepPlan(
            1, 1, b"", ints(slots), ints(counts), bytes(samples), admits=tuple(self._admits),
            appends=tuple(map(ints, appends)), releases=ints(releases), **changes,
        )  # fmt: skip
        self._admits.clear()
        with self._watch():
            step = self.runner.launch(plan)
        return self.runner.collect(step)

    def release(self, slots: Sequence[int]) -> None:
        self.run((), releases=slots)

    def _take(self, count: int) -> list[int]:
        self._next_block += count
        return list(range(self._next_block - count, self._next_block))


def tokens(result: StepResult) -> list[int]:
    return np.frombuffer(result.token_ids, dtype=np.int32).tolist()


def logprobs(result: StepResult) -> list[float]:
    """Of the drawn token and of the likeliest ones, row after row; all rows must ask for them."""
    return [value for part in result.logprobs for one in part.entries for value in (one.logprob, *one.top_logprobs)]
