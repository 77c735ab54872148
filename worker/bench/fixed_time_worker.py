"""A worker that computes nothing: every step takes a fixed time and samples pseudo-random tokens.

It speaks the worker protocol in full, so everything around the device can be measured without a device (`quire bench
control`). `python -m quire.worker.bench.fixed_time_worker CONFIG.json` runs until the scheduler says Stop or the
process gets SIGTERM, then writes one JSON object: steps, tokens, and when each step began and ended (CLOCK_MONOTONIC).
"""

import json
import signal
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import zmq

from quire.proto.messages.plans import (
    GENESIS,
    GroupFacts,
    PlanMessage,
    Ready,
    StepPlan,
    StepResult,
    Stop,
    Welcomed,
    WorkerHello,
    plan_hash,
)
from quire.proto.messages.requests import PROTOCOL_VERSION, ModelFacts
from quire.proto.process.parent_death import tie_to_parent
from quire.proto.transport.channel import Dealer, PeerUnreachable
from quire.proto.transport.wire import encode, ints, plan_decoder

HELLO_SECONDS = 5.0
POLL_SECONDS = 0.2


class FixedTimeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    scheduler_address: str
    report_file: str
    """Path that the JSON object goes to."""
    step_ms: float = 5.0
    vocab_size: int = 32_000
    eos_token_ids: tuple[int, ...] = ()
    """End tokens it announces and never samples."""
    max_model_len: int = 4096
    num_blocks: int = 65_536
    block_size: int = 16
    seed: int = 0
    epoch: int = 1

    def __post_init__(self) -> None:
        if self.step_ms < 0:
            raise ValueError(f"step_ms: must not be negative, got {self.step_ms}")
        if self.vocab_size <= max(self.eos_token_ids, default=0) + 1:
            raise ValueError(
                f"vocab_size: {self.vocab_size} leaves no token beyond the end tokens {self.eos_token_ids}"
            )


class Timeline:
    """When the imaginary device was busy. It starts a plan when the plan is there and the step before has ended."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self.starts: list[float] = []
        self.ends: list[float] = []

    def run(self, arrived: float) -> float:
        """Enter a step whose plan came at `arrived`; the moment it ends."""
        start = max(arrived, self.ends[-1]) if self.ends else arrived
        self.starts.append(start)
        self.ends.append(start + self._step_seconds)
        return self.ends[-1]


class FixedTimeWorker:
    """Rank 0 of a group of one."""

    def __init__(self, config: FixedTimeConfig, dealer: Dealer[PlanMessage]) -> None:
        self._config = config
        self._dealer = dealer
        self._random = np.random.default_rng(config.seed)
        self._first_token = max(config.eos_token_ids, default=-1) + 1
        self._step = 0
        self._previous = GENESIS
        self._stopped = False
        self.timeline = Timeline(config.step_ms / 1e3)
        self.num_tokens = 0

    def stop(self) -> None:
        """Leave `run` soon; callable from a signal handler."""
        self._stopped = True

    def join(self) -> None:
        """HELLO, wait to be welcomed, READY. Raises `RuntimeError` when the scheduler refuses or is silent."""
        config = self._config
        self._dealer.send(WorkerHello(PROTOCOL_VERSION, config.epoch, 0, 1))
        answer = self._dealer.receive(HELLO_SECONDS)
        if not isinstance(answer, Welcomed):
            raise RuntimeError(f"the scheduler did not welcome this worker: {answer}")
        facts = ModelFacts(
            max_model_len=config.max_model_len,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
            num_blocks=config.num_blocks,
            block_sizes=(config.block_size,),
            kv_bytes=0,
            weight_bytes=0,
            device="none",
            dtype="float32",
            architecture="FixedTime",
            revision="fixed-time",
        )
        self._dealer.send(Ready(config.epoch, 0, facts, GroupFacts(), digest="fixed-time"))

    def run(self) -> None:
        while not self._stopped:
            message = self._dealer.receive(POLL_SECONDS)
            arrived = time.monotonic()
            while isinstance(message, StepPlan) and not self._stopped:
                self._run(message, arrived)
                message = self._dealer.receive(0)
                # queued behind the step: it was there when the step ended, however late this process reads it
                arrived = self.timeline.ends[-1] if self.timeline.ends else time.monotonic()
            if isinstance(message, Stop):
                return

    def _run(self, plan: StepPlan, arrived: float) -> None:
        if plan.step != self._step + 1 or plan.epoch != self._config.epoch or plan.previous != self._previous:
            raise RuntimeError(f"plan {plan.step} of epoch {plan.epoch} does not follow {self._step} of this group")
        self._step = plan.step
        self._previous = plan_hash(*encode(plan))
        num_samples = plan.samples.count(1)
        drawn = self._random.integers(self._first_token, self._config.vocab_size, num_samples, dtype=np.int32)
        if plan.slots:
            time.sleep(max(0.0, self.timeline.run(arrived) - time.monotonic()))
        self.num_tokens += num_samples
        try:
            self._dealer.send(StepResult(plan.epoch, plan.step, ints(drawn), device_seconds=self._config.step_ms / 1e3))
        except PeerUnreachable:
            if not self._stopped:  # an engine that is stopped ends its scheduler first
                raise


def main() -> int:
    tie_to_parent()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=FixedTimeConfig)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = Dealer(context, config.scheduler_address, b"fixed-time", plan_decoder())
    worker = FixedTimeWorker(config, dealer)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker.join()
    worker.run()
    timeline = worker.timeline
    report = {
        "steps": len(timeline.ends),
        "tokens": worker.num_tokens,
        "starts": timeline.starts,
        "ends": timeline.ends,
    }
    Path(config.report_file).write_text(json.dumps(report))
    dealer.close()
    context.term()
    return 0


if __name__ == "__main__":
    sys.exit(main())
