"""A bench as a peer of the scheduler: it speaks as a frontend does, with token ids and without text or gRPC."""

import time
from collections import Counter

import numpy as np
import zmq
from msgspec import structs

from quire.deploy.bench.load.bench_processes import BenchProcesses
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.commands.serve import QuireEngine
from quire.deploy.config import FRONTENDS_SOCKET, compose
from quire.deploy.flags.options import ServeOptions
from quire.deploy.model_path import Model
from quire.proto.messages.introspection import LoadQuery
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Hello,
    ModelFacts,
    Outputs,
    Refused,
    SchedulerMessage,
    Submit,
    Welcome,
)
from quire.proto.transport.channel import Dealer
from quire.proto.transport.wire import ints, scheduler_decoder, unpack

LEASE_SECONDS = 86_400.0
"""A peer may be silent: while it prepares its next requests, or because the machine is busy. Its death ends the engine
without a lease."""


def start_engine(processes: BenchProcesses, options: ServeOptions, model: Model) -> list[int]:
    """Scheduler and workers, without frontends; process ids of the workers by rank."""
    composed = compose(options, model, processes.run_dir)
    scheduler = structs.replace(composed.scheduler, frontend_lease_seconds=LEASE_SECONDS)
    engine = QuireEngine(structs.replace(composed, scheduler=scheduler), processes.run_dir)
    processes.start("scheduler", 0, engine.scheduler_command())
    return [processes.start("worker", rank, engine.worker_command(rank, 1)).pid for rank in range(engine.world_size)]


class EnginePeer:
    """A peer that submits and receives. A wait without a message also checks that the engine's processes live."""

    def __init__(self, processes: BenchProcesses) -> None:
        self._processes = processes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        address = processes.run_dir.address(FRONTENDS_SOCKET)
        self._dealer: Dealer[SchedulerMessage] = Dealer(self._context, address, b"bench", scheduler_decoder())
        self._number = 0
        self._num_live = 0

    def close(self) -> None:
        self._dealer.close()
        self._context.term()

    def join(self, timeout_seconds: float) -> ModelFacts:
        """HELLO, then wait until the workers are ready; what they reported."""
        self._dealer.send(Hello("frontend", PROTOCOL_VERSION), timeout_seconds=min(60.0, timeout_seconds))
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            message = self.receive(0.1)
            if isinstance(message, Welcome) and message.state == "ready" and message.facts is not None:
                return message.facts
        raise BenchError(f"the engine was not ready within {timeout_seconds:g} s")

    def idle(self) -> bool:
        """Everything submitted has finished."""
        return not self._num_live

    def submit(self, token_ids: list[int], max_tokens: int) -> None:
        """One greedy output of exactly `max_tokens` tokens."""
        self._number += 1
        self._num_live += 1
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        prompt = ints(np.asarray(token_ids))
        self._dealer.send(Submit(self._number, f"bench-{self._number}", prompt, params, timeout_seconds=3600.0))

    def ask_load(self) -> None:
        self._dealer.send(LoadQuery(0))

    def receive(self, timeout_seconds: float) -> SchedulerMessage | None:
        """The next message, or None. Raises `BenchError` when an output failed or a process died."""
        message = self._dealer.receive(timeout_seconds)
        if message is None:
            self._processes.watch(0.0)
        elif isinstance(message, Refused):
            raise BenchError(f"the scheduler refused this bench: {message.reason}")
        elif isinstance(message, Outputs):
            self._account(message)
        return message

    def _account(self, outputs: Outputs) -> None:
        for finish in outputs.finishes:
            self._num_live -= 1
            if finish.reason != "length":
                raise BenchError(f"request {finish.number} ended with {finish.reason} {finish.error}: {finish.message}")


def first_tokens(outputs: Outputs) -> int:
    """Number of outputs that got their first token in this step."""
    return Counter(unpack(outputs.positions).tolist())[0]


def num_tokens(outputs: Outputs) -> int:
    return len(outputs.token_ids) // 4
