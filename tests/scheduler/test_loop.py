"""The scheduler's loop over real sockets: a scripted worker on one side, frontends and a supervisor on the other."""

import sys
from pathlib import Path

import numpy as np
import pytest

from quire.proto.messages.introspection import LoadQuery, LoadReply, MetricsQuery, MetricsReply
from quire.proto.messages.plans import ExpertTokens, Ready, StepPlan, StepResult, Welcomed
from quire.proto.messages.requests import (
    Abort,
    Drain,
    Drained,
    GroupLost,
    Outputs,
    SchedulerBeat,
    Welcome,
)
from quire.proto.metrics.families import SCHEDULER_FAMILIES
from quire.proto.transport.channel import PeerUnreachable
from quire.proto.transport.wire import ints, unpack
from quire.scheduler.core import admission

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loop_peers import FACTS, ONE, WAIT, answer, expect, submit


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


def test_beats_tell_every_frontend_whether_the_engine_owes_a_step(peers):
    """Whoever asked for it, and though nobody waits for it any more."""
    frontends = [peers.frontend(name) for name in (b"f", b"g")]
    worker = peers.ready_worker(b"w")

    def both_hear(is_idle: bool) -> None:
        for frontend in frontends:
            expect(frontend, SchedulerBeat, lambda beat: beat.is_idle is is_idle)

    both_hear(True)
    frontends[0].send(submit(1, max_tokens=1))
    plan = expect(worker, StepPlan)
    both_hear(False)
    frontends[0].send(Abort((1,), "client"))
    frontends[0].send(LoadQuery(1))
    assert expect(frontends[0], LoadReply).load.num_running == 0
    both_hear(False)
    worker.send(StepResult(plan.epoch, plan.step, ints([11])))
    both_hear(True)


def test_figures_of_the_process_and_its_sockets_come_along(peers):
    frontend = peers.frontend(b"f")
    peers.frontend(b"s", "supervisor")
    worker = peers.worker(b"w")
    assert worker.receive(WAIT) == Welcomed(1)
    phases, memory = (("load", 1.5), ("warm up", 0.5)), (("weights", 512), ("kv_cache", 64))
    worker.send(Ready(1, 0, FACTS, ONE, "digest", phases, memory))
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


def test_what_the_reporter_counts_of_experts_is_shown(peers):
    frontend, worker = peers.frontend(b"f"), peers.ready_worker(b"w")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    worker.send(ExpertTokens((2,), np.array([3, 1], np.int64).tobytes(), (0, 1)))
    shown = {}
    while not shown:
        frontend.send(MetricsQuery(7))
        figures = expect(frontend, MetricsReply).figures
        shown = {(one.name, one.labels[0][1]): one.value for one in figures if one.name.startswith("expert_")}
    assert shown == {
        ("expert_tokens_total", "0"): 3,
        ("expert_tokens_total", "1"): 1,
        ("expert_imbalance_ratio", "2"): 1.5,
        ("expert_rank_imbalance_ratio", "2"): 1.5,
    }


def test_figures_of_a_group_end_with_it(peers):
    frontend, supervisor = peers.frontend(b"f"), peers.frontend(b"s", "supervisor")
    worker = peers.worker(b"w")
    assert worker.receive(WAIT) == Welcomed(1)
    worker.send(Ready(1, 0, FACTS, ONE, "digest", (("load", 1.5),), (("weights", 512),)))
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
