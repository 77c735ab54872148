"""The order of plans, enforced by a real process over a real socket; its executor is a stand-in without a model."""

import sys
from pathlib import Path

import msgspec
import pytest

from quire.proto.messages.plans import GroupFacts, StepAck, Welcomed, WorkerHello
from quire.proto.transport.wire import encode, ints


@pytest.fixture
def echo(group):
    """A started group of one echo worker."""

    def make(*options):
        return group(command=[sys.executable, str(Path(__file__).with_name("echo_worker.py")), *options])

    return make


@pytest.fixture
def served(echo, scribe):
    """An echo worker that has run plan 1, and the scribe for the next."""
    workers = echo()
    workers.join()
    writer = scribe(8)
    writer.admit(0, [1, 2, 3])
    assert workers.step(writer.plan([(0, 3)])[1]).token_ids == ints([7])
    return workers, writer


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"step": 3}, "after a gap"),
        ({"step": 1}, "repeated or old"),
        ({"epoch": 2}, "is of epoch 2, this worker of 1"),
        ({"previous": b"otherone"}, "follows another plan 1"),
    ],
    ids=["gap", "repeat", "epoch", "history"],
)
def test_a_plan_out_of_order_ends_the_worker_loudly(served, change, complaint):
    workers, writer = served
    workers.send(encode(msgspec.structs.replace(writer.plan([(0, 1)])[0], **change)))
    failure = workers.failure()
    assert complaint in failure.reason
    assert (failure.epoch, failure.rank, failure.step) == (1, 0, 1)
    assert workers.exit_codes() == [4]
    assert complaint in workers.log.read_text()


def test_bytes_that_are_no_plan_end_the_worker_loudly(served):
    workers, _ = served
    workers.send(b"\xc1 not a message")
    assert "undecodable frame" in workers.failure().reason
    assert workers.exit_codes() == [4]


def test_a_fault_inside_a_step_is_logged_with_its_place_and_reported(served):
    workers, writer = served
    workers.send(writer.plan([], slots=ints([666]))[1])
    failure = workers.failure()
    assert failure.reason == "RuntimeError: a fault inside the step"
    assert failure.step == 2
    assert workers.exit_codes() == [4]
    assert "in launch" in workers.log.read_text()


def test_the_history_is_the_bytes_and_not_their_meaning(served):
    """A hundred plans, each naming the hash of the frame before it."""
    workers, writer = served
    for _ in range(100):
        assert workers.step(writer.plan([(0, 1)])[1]).step == writer.step
    assert workers.stop() == [0]


def test_a_rank_that_does_not_report_acknowledges(echo, scribe):
    """The first of two stages, a stand-in for pipeline parallelism: the group's facts say who reports, not rank 0."""
    workers, writer = echo("--two-stages"), scribe(8)
    assert workers.join()[0].group == GroupFacts(2, num_stages=2, reporter=1, max_in_flight=3)
    writer.admit(0, [1, 2, 3])
    workers.send(writer.plan([(0, 3)])[1])
    assert workers.receive()[1] == StepAck(1, 0, 1)
    assert workers.stop() == [0]


@pytest.mark.parametrize("answer", [Welcomed(7), None], ids=["another epoch", "silence"])
def test_a_worker_that_is_not_welcomed_leaves_loudly(echo, answer):
    workers = echo()
    if answer is None:
        assert isinstance(workers.receive()[1], WorkerHello)
    else:
        workers.hello()
        workers.send(answer)
    assert workers.exit_codes() == [3]
    assert "not welcomed within 5 s" in workers.log.read_text()
