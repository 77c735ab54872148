"""The scheduler's loop over real sockets: a scripted worker on one side, frontends and a supervisor on the other."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from quire.proto.messages.introspection import LoadQuery, LoadReply, MetricsQuery, MetricsReply
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import Ready, StepPlan, StepResult, Stop, Welcomed, WorkerHello
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Drain,
    Drained,
    FrontendBeat,
    GroupLost,
    Hello,
    ModelFacts,
    Outputs,
    Refused,
    SchedulerBeat,
    Submit,
    Welcome,
)
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.proto.transport.channel import Dealer, PeerUnreachable, ipc_address
from quire.proto.transport.wire import ints, plan_decoder, scheduler_decoder, unpack
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core import admission
from quire.scheduler.loop import SchedulerLoop

WAIT = 10.0
FACTS = ModelFacts(
    max_model_len=64,
    vocab_size=100,
    eos_token_ids=(0,),
    num_blocks=32,
    block_size=4,
    kv_bytes=1,
    weight_bytes=1,
    device="cpu",
    dtype="float32",
    architecture="LlamaForCausalLM",
    revision="r",
)


class Peers:
    """Makes the sockets of the scripted processes."""

    def __init__(self, run_dir: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.frontends_address = ipc_address(run_dir, "frontends")
        self.workers_address = ipc_address(run_dir, "workers")
        self._open: list[Dealer] = []
        self.loop: SchedulerLoop

    def worker(self, name: bytes, epoch: int = 1) -> Dealer:
        dealer = Dealer(self.context, self.workers_address, name, plan_decoder())
        self._open.append(dealer)
        dealer.send(WorkerHello(PROTOCOL_VERSION, epoch, 0, 1))
        return dealer

    def ready_worker(self, name: bytes, epoch: int = 1) -> Dealer:
        worker = self.worker(name, epoch)
        assert worker.receive(WAIT) == Welcomed(epoch)
        worker.send(Ready(epoch, 0, FACTS, "digest"))
        return worker

    def frontend(self, name: bytes, role="frontend", version: int = PROTOCOL_VERSION) -> Dealer:
        dealer = Dealer(self.context, self.frontends_address, name, scheduler_decoder())
        self._open.append(dealer)
        dealer.send(Hello(role, version))
        return dealer

    def close(self) -> None:
        for dealer in self._open:
            dealer.close()
        self.context.term()


def expect(dealer: Dealer, kind: type, matches=lambda message: True):
    """The next message of this kind that matches; beats and others are passed over."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        message = dealer.receive(0.1)
        if isinstance(message, kind) and matches(message):
            return message
    raise AssertionError(f"no {kind.__name__} within {WAIT} s")


def answer(worker: Dealer, token: int) -> StepPlan:
    """Answer the next plan: every sampling row draws `token`."""
    plan = expect(worker, StepPlan)
    worker.send(StepResult(plan.epoch, plan.step, ints([token] * int(np.frombuffer(plan.samples, np.uint8).sum()))))
    return plan


def submit(number: int, max_tokens: int = 3) -> Submit:
    return Submit(number, "label", ints([5, 6, 7]), SamplingParams(max_tokens=max_tokens))


@pytest.fixture
def peers(request, tmp_path) -> Iterator[Peers]:
    """Indirect parameters are further fields of the configuration."""
    peers = Peers(str(tmp_path))
    config = SchedulerConfig(
        frontends_address=peers.frontends_address,
        workers_address=peers.workers_address,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        frontend_lease_seconds=1.5,
        audit_interval_steps=1,
        **getattr(request, "param", {}),
    )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peers.loop = loop = SchedulerLoop(config, context)
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield peers
    loop.stop()
    thread.join(WAIT)
    assert not thread.is_alive()
    peers.close()
    context.term()


def test_tokens_travel_from_the_worker_to_the_frontend(peers):
    frontend = peers.frontend(b"f")
    assert expect(frontend, Welcome).state == "starting"
    worker = peers.ready_worker(b"w")
    welcome = expect(frontend, Welcome, lambda message: message.state == "ready")
    assert welcome.facts == FACTS
    assert welcome.epoch == 1
    frontend.send(submit(1))
    for token in (11, 12, 13):
        answer(worker, token)
    tokens: list[int] = []
    finish = None
    while finish is None:
        outputs = expect(frontend, Outputs)
        tokens += unpack(outputs.token_ids).tolist()
        finish = next(iter(outputs.finishes), None)
    assert tokens == [11, 12, 13]
    assert (finish.reason, finish.num_tokens) == ("length", 3)
    assert expect(frontend, SchedulerBeat, lambda beat: beat.step == 3).epoch == 1


def test_figures_of_the_process_and_its_sockets_come_along(peers):
    frontend = peers.frontend(b"f")
    peers.frontend(b"s", "supervisor")
    worker = peers.worker(b"w")
    assert worker.receive(WAIT) == Welcomed(1)
    worker.send(Ready(1, 0, FACTS, "digest", (("load", 1.5), ("warm up", 0.5)), (("weights", 512), ("kv_cache", 64))))
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.socket.send(b"\xc1 no message")
    frontend.send(MetricsQuery(7))
    figures = expect(frontend, MetricsReply, lambda message: message.query == 7).figures
    values = {(one.name, *(text for _, text in one.labels)): one.value for one in figures}
    assert values["bad_frames_total", "frontends"] == 1
    assert values["bad_frames_total", "workers"] == 0
    assert values["startup_phase_seconds", "load", "0"] == 1.5
    assert values["startup_phase_seconds", "warm up", "0"] == 0.5
    assert values["device_memory_bytes", "weights", "0"] == 512
    assert values["device_memory_bytes", "kv_cache", "0"] == 64
    assert values["frontends_connected",] == 1
    assert values["scheduler_resident_memory_bytes",] > 1 << 20
    assert all(SCHEDULER_FAMILIES[one.name].labels == tuple(label for label, _ in one.labels) for one in figures)


def test_figures_of_a_group_end_with_it(peers):
    frontend, supervisor = peers.frontend(b"f"), peers.frontend(b"s", "supervisor")
    worker = peers.worker(b"w")
    assert worker.receive(WAIT) == Welcomed(1)
    worker.send(Ready(1, 0, FACTS, "digest", (("load", 1.5),), (("weights", 512),)))
    expect(frontend, Welcome, lambda message: message.state == "ready")
    told = []
    for query, lost in ((7, False), (8, True)):
        if lost:
            supervisor.send(GroupLost(1, "killed"))
            expect(frontend, Welcome, lambda message: message.state == "recovering")
        frontend.send(MetricsQuery(query))
        figures = expect(frontend, MetricsReply, lambda message, query=query: message.query == query).figures
        told.append({one.name for one in figures} & {"device_memory_bytes", "startup_phase_seconds"})
    assert told == [{"device_memory_bytes", "startup_phase_seconds"}, set()]


def test_a_lost_group_is_replaced_and_the_request_goes_on(peers):
    supervisor = peers.frontend(b"s", "supervisor")
    frontend = peers.frontend(b"f")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1))
    answer(worker, 11)
    assert unpack(expect(frontend, Outputs).token_ids).tolist() == [11]
    supervisor.send(GroupLost(1, "killed"))
    assert expect(supervisor, Welcome, lambda message: message.state == "recovering").epoch == 1
    again = peers.ready_worker(b"w2", epoch=2)
    plan = answer(again, 12)
    assert (plan.epoch, plan.step) == (2, 1)
    assert unpack(plan.admits[0].tokens).tolist() == [5, 6, 7, 11]
    answer(again, 13)
    tokens: list[int] = []
    while len(tokens) < 2:
        tokens += unpack(expect(frontend, Outputs).token_ids).tolist()
    assert tokens == [12, 13]


def test_a_result_that_does_not_fit_its_plan_ends_the_group(peers):
    frontend = peers.frontend(b"f")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1))
    plan = expect(worker, StepPlan)
    worker.send(StepResult(plan.epoch, plan.step, ints([1, 2, 3, 4])))
    assert "4 tokens" in expect(frontend, Welcome, lambda message: message.state == "recovering").detail


def test_a_worker_of_a_past_epoch_is_told_to_stop_and_its_results_are_dropped(peers):
    peers.ready_worker(b"w2", epoch=2)
    late = peers.worker(b"w1", epoch=1)
    assert "past" in expect(late, Stop).reason
    late.send(StepResult(2, 1, ints([9])))
    frontend = peers.frontend(b"f")
    assert expect(frontend, Welcome).state == "ready"


def test_a_silent_frontend_loses_its_requests_and_its_return_is_refused_until_it_says_hello(peers):
    frontend = peers.frontend(b"f")
    peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1))
    watcher = peers.frontend(b"g")

    def idle() -> bool:
        watcher.send(LoadQuery(1))
        load = expect(watcher, LoadReply).load
        return load.num_running == load.num_waiting == 0

    assert not idle()
    deadline = time.monotonic() + WAIT
    while not idle():
        assert time.monotonic() < deadline
        watcher.send(FrontendBeat())
    frontend.send(FrontendBeat())
    assert "HELLO" in expect(frontend, Refused).reason
    frontend.send(Hello("frontend", PROTOCOL_VERSION))
    assert expect(frontend, Welcome).state == "ready"


def test_another_protocol_version_is_refused_naming_both(peers):
    reason = expect(peers.frontend(b"f", version=99), Refused).reason
    assert "99" in reason
    assert str(PROTOCOL_VERSION) in reason


def test_garbage_on_either_socket_changes_nothing(peers):
    frontend = peers.frontend(b"f")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    for frame in (b"", b"\x80\x04pickle", b"\x93" * 1000, b"\xdd\xff\xff\xff\xff"):
        frontend.socket.send(frame)
        worker.socket.send(frame)
    frontend.socket.send_multipart([b"a", b"b"])
    frontend.send(submit(1, max_tokens=1))
    answer(worker, 3)
    assert expect(frontend, Outputs).finishes[0].reason == "length"


def test_a_request_that_trips_over_a_bug_is_refused_and_the_others_go_on(peers, monkeypatch):
    def stumble(submitted, config):
        if submitted.number == 2:
            raise ZeroDivisionError

    monkeypatch.setattr(admission, "check_form", stumble)
    frontend = peers.frontend(b"f")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1, max_tokens=2))
    answer(worker, 3)
    frontend.send(submit(2))
    refused = expect(frontend, Outputs, lambda outputs: any(finish.number == 2 for finish in outputs.finishes))
    assert (refused.finishes[0].reason, refused.finishes[0].error) == ("rejected", "BUG")
    answer(worker, 4)
    assert expect(frontend, Outputs, lambda outputs: outputs.finishes).finishes[0].reason == "length"


def test_only_the_supervisor_may_drain_and_it_hears_when_all_is_done(peers):
    frontend = peers.frontend(b"f")
    supervisor = peers.frontend(b"s", "supervisor")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(Drain(30.0))
    frontend.send(submit(1, max_tokens=2))
    answer(worker, 3)
    supervisor.send(Drain(30.0))
    expect(frontend, Welcome, lambda message: message.state == "draining")
    frontend.send(submit(2))
    rejected = expect(frontend, Outputs, lambda outputs: any(finish.number == 2 for finish in outputs.finishes))
    assert rejected.finishes[-1].error == "DRAINING"
    answer(worker, 4)
    assert expect(supervisor, Drained).num_ended == 0


@pytest.mark.parametrize("peers", [{"step_timeout_seconds": 0.3}], indirect=True)
def test_a_group_that_leaves_a_plan_unanswered_is_given_up(peers):
    supervisor = peers.frontend(b"s", "supervisor")
    frontend = peers.frontend(b"f")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1, max_tokens=2))
    answer(worker, 3)
    expect(worker, StepPlan)
    recovering = expect(supervisor, Welcome, lambda message: message.state == "recovering")
    assert recovering.epoch == 1
    assert "no answer to step 2 within 0.3 s" in recovering.detail
    answer(peers.ready_worker(b"w2", epoch=2), 4)
    finish = expect(frontend, Outputs, lambda outputs: outputs.finishes).finishes[0]
    assert (finish.reason, finish.num_tokens, finish.usage.num_restarts) == ("length", 2, 1)


@pytest.mark.parametrize("peers", [{"max_restarts_per_request": 0}], indirect=True)
def test_an_end_never_overtakes_the_tokens_before_it(peers, monkeypatch):
    frontend = peers.frontend(b"f")
    worker = peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1, max_tokens=5))
    plans = [expect(worker, StepPlan) for _ in range(2)]

    def unreachable(identity: bytes, message: object) -> None:
        raise PeerUnreachable("gone")

    monkeypatch.setattr(peers.loop._workers, "send", unreachable)
    worker.send(StepResult(1, plans[0].step, ints([11])))
    assert unpack(expect(frontend, Outputs).token_ids).tolist() == [11]
    finish = expect(frontend, Outputs, lambda outputs: outputs.finishes).finishes[0]
    assert (finish.error, finish.num_tokens) == ("POISON_REQUEST", 1)
