"""The scheduler's loop and peers that are late, past, mute or of another version."""

import sys
from pathlib import Path

import pytest
from parts.clock import eventually

from quire.proto.messages.introspection import LoadQuery, LoadReply
from quire.proto.messages.plans import StepPlan, StepResult, Stop
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    FrontendBeat,
    Hello,
    Outputs,
    Refused,
    Welcome,
)
from quire.proto.transport.wire import ints

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loop_peers import answer, expect, submit


def test_a_worker_of_a_past_epoch_is_told_to_stop_and_its_results_are_dropped(peers):
    peers.ready_worker(b"w2", epoch=2)
    late = peers.worker(b"w1", epoch=1)
    assert "past" in expect(late, Stop).reason
    late.send(StepResult(2, 1, ints([9])))
    frontend = peers.frontend(b"f")
    assert expect(frontend, Welcome).state == "ready"


@pytest.mark.parametrize("peers", [{"frontend_lease_seconds": 2.0}], indirect=True)
def test_a_silent_frontend_loses_its_requests_and_its_return_is_refused_until_it_says_hello(peers):
    worker = peers.ready_worker(b"w")
    frontend = peers.frontend(b"f")
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1))
    expect(worker, StepPlan)
    watcher = peers.frontend(b"g")

    def idle() -> bool:
        watcher.send(Hello("frontend", PROTOCOL_VERSION))  # its own lease may be over, too
        watcher.send(LoadQuery(1))
        load = expect(watcher, LoadReply).load
        return load.num_running == load.num_waiting == 0

    eventually(idle, poll=0.05)
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


@pytest.mark.parametrize("peers", [{"step_timeout_seconds": 2.0}], indirect=True)
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
    assert "no answer to step 2 within 2 s" in recovering.detail
    answer(peers.ready_worker(b"w2", epoch=2), 4)
    finish = expect(frontend, Outputs, lambda outputs: outputs.finishes).finishes[0]
    assert (finish.reason, finish.num_tokens, finish.usage.num_restarts) == ("length", 2, 1)
