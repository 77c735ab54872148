"""The worker that computes nothing keeps the worker protocol and its own clock."""

import threading
import time
from pathlib import Path

import pytest
import zmq
from parts.clock import GUARD

from quire.proto.messages.plans import GENESIS, Ready, StepPlan, StepResult, Stop, Welcomed, WorkerHello, plan_hash
from quire.proto.transport.channel import Dealer, PeerUnreachable, Router
from quire.proto.transport.wire import encode, ints, plan_decoder, unpack, worker_decoder
from quire.worker.bench.fixed_time_worker import FixedTimeConfig, FixedTimeWorker, Timeline


def test_a_plan_that_is_early_starts_when_the_step_before_ends() -> None:
    timeline = Timeline(5.0)
    assert [timeline.run(moment) for moment in (100.0, 101.0, 110.0, 130.0)] == [105.0, 110.0, 115.0, 135.0]
    assert timeline.starts == [100.0, 105.0, 110.0, 130.0]


class Group:
    """The scheduler's side of one worker running in a thread."""

    def __init__(self, folder: Path) -> None:
        self.context = zmq.Context()
        address = f"ipc://{folder}/w.sock"
        self.router = Router(self.context, address, worker_decoder())
        config = FixedTimeConfig(
            scheduler_address=address, report_file="", step_ms=1.0, vocab_size=50, eos_token_ids=(0, 2)
        )
        dealer = Dealer(self.context, address, b"w", plan_decoder())
        self.worker = FixedTimeWorker(config, dealer)
        self.dealer = dealer
        self.failure: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        hello = self.receive()
        assert isinstance(hello, WorkerHello)
        self.router.send(b"w", Welcomed(hello.epoch))
        self.ready = self.receive()

    def _run(self) -> None:
        try:
            self.worker.join()
            self.worker.run()
        except RuntimeError as error:
            self.failure.append(error)

    def receive(self):
        assert self.router.socket.poll(1000 * GUARD)
        received = self.router.receive()
        assert received is not None
        return received[1]

    def end(self) -> None:
        if self.thread.is_alive():
            try:
                self.router.send(b"w", Stop("test over"))
            except PeerUnreachable:
                self.worker.stop()
        self.thread.join(GUARD)
        assert not self.thread.is_alive()
        self.dealer.close()
        self.router.close()
        self.context.term()


@pytest.fixture
def group(tmp_path: Path):
    group = Group(tmp_path)
    yield group
    group.end()


def plan(step: int, previous: bytes, samples: bytes = b"\x01\x00\x01", epoch: int = 1) -> StepPlan:
    rows = len(samples)
    return StepPlan(epoch, step, previous, ints(range(rows)), ints([1] * rows), samples)


def test_it_answers_each_plan_with_one_token_for_each_sampling_row(group) -> None:
    assert isinstance(group.ready, Ready)
    first = plan(1, GENESIS)
    second = plan(2, plan_hash(*encode(first)))
    for message in (first, second):
        group.router.send(b"w", message)
    begin = time.monotonic()
    results = [group.receive(), group.receive()]
    assert all(isinstance(result, StepResult) for result in results)
    assert [result.step for result in results] == [1, 2]
    tokens = [token for result in results for token in unpack(result.token_ids).tolist()]
    assert len(tokens) == 4
    assert all(2 < token < 50 for token in tokens), "never an end token"
    group.end()
    assert group.worker.num_tokens == 4
    assert len(group.worker.timeline.ends) == 2
    assert group.worker.timeline.ends[0] <= group.worker.timeline.starts[1]
    assert begin - 1 < group.worker.timeline.starts[0]


@pytest.mark.parametrize(
    "wrong", [plan(2, GENESIS), plan(1, b"x" * 8), plan(1, GENESIS, epoch=2)], ids=["gap", "hash", "epoch"]
)
def test_a_plan_that_does_not_follow_ends_it(group, wrong) -> None:
    group.router.send(b"w", wrong)
    group.thread.join(GUARD)
    assert "does not follow" in str(group.failure[0])


def test_impossible_configurations_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="step_ms"):
        FixedTimeConfig(scheduler_address="", report_file="", step_ms=-1.0)
    with pytest.raises(ValueError, match="vocab_size"):
        FixedTimeConfig(scheduler_address="", report_file="", vocab_size=3, eos_token_ids=(2,))
