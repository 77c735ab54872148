"""A whole engine (scheduler and worker processes, no frontend) that this process submits to."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import chip
import numpy as np
from msgspec import structs

from quire.deploy.bench.load.bench_processes import BenchProcesses
from quire.deploy.bench.peer import EnginePeer, start_engine
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import resolve
from quire.proto.messages.introspection import MetricsQuery, MetricsReply
from quire.proto.messages.requests import Abort, ModelFacts, Outputs
from quire.proto.transport.wire import unpack

FIGURES_SECONDS = 10.0


class Peer(EnginePeer):
    """Takes back what did not finish in its time."""

    def ask_figures(self) -> None:
        self._dealer.send(MetricsQuery(0))

    def abort(self, numbers: Sequence[int]) -> None:
        self._dealer.send(Abort(tuple(numbers)))
        quiet = time.monotonic() + 1.0
        while time.monotonic() < quiet:
            self.receive(0.1)
        self._num_live = 0

    def _account(self, outputs: Outputs) -> None:
        kept = tuple(finish for finish in outputs.finishes if finish.reason != "abort")
        super()._account(structs.replace(outputs, finishes=kept))


class Engine:
    """Its facts, and runs of many requests at once."""

    def __init__(self, peer: Peer, facts: ModelFacts, ready_seconds: float) -> None:
        self.peer = peer
        self.facts = facts
        self.ready_seconds = ready_seconds
        self._submitted = 0

    def device_seconds(self) -> float:
        """Of all steps so far, each between the device's events at its beginning and its end."""
        self.peer.ask_figures()
        until = time.monotonic() + chip.patience() * FIGURES_SECONDS
        while time.monotonic() < until:
            message = self.peer.receive(0.1)
            if isinstance(message, MetricsReply):
                return next(
                    figure.value for figure in message.figures
                    if figure.name == "step_part_seconds_total" and ("part", "device") in figure.labels
                )  # fmt: skip
        raise BenchError(f"the scheduler told no figures within {FIGURES_SECONDS:g} s")

    def run(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, seconds: float
    ) -> tuple[list[list[int]], list[list[float]], bool]:
        """Submit all at once; each one's tokens, when each of them came (seconds from the start), and whether all did.

        After `seconds` the rest is aborted.
        """
        first = self._submitted
        self._submitted += len(prompts)
        drawn: list[list[int]] = [[] for _ in prompts]
        moments: list[list[float]] = [[] for _ in prompts]
        begun = time.monotonic()
        for prompt in prompts:
            self.peer.submit(list(prompt), max_tokens)
        missing = len(prompts)
        while missing and time.monotonic() - begun < seconds:
            message = self.peer.receive(0.05)
            if not isinstance(message, Outputs):
                continue
            now = time.monotonic() - begun
            numbers = np.frombuffer(message.numbers, dtype=np.int64) - first - 1
            for index, token in zip(numbers.tolist(), unpack(message.token_ids).tolist(), strict=True):
                if index < 0:  # of an earlier run, drawn before its abort arrived
                    continue
                drawn[index].append(token)
                moments[index].append(now)
            missing -= len(message.finishes)
        if missing:
            self.peer.abort(range(first + 1, self._submitted + 1))
        return drawn, moments, not missing


@contextlib.contextmanager
def engine(folder: Path, seconds: float, **options: object) -> Iterator[Engine]:
    """`options` of `quire serve`; ready within `seconds`, of a GPU."""
    seconds *= chip.patience()
    chosen = ServeOptions(load_format="dummy", startup_timeout=seconds, **options)
    begun = time.monotonic()
    with BenchProcesses() as processes:
        start_engine(processes, chosen, resolve(str(folder), "dummy", processes.run_dir.path))
        peer = Peer(processes)
        try:
            facts = peer.join(seconds)
            yield Engine(peer, facts, time.monotonic() - begun)
        finally:
            peer.close()
        processes.stop()
