"""Sockets between the processes: what size passes, and who pays for a message that is too large."""

import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from parts.clock import GUARD

from quire.proto.messages.plans import StepPlan, StepResult, WorkerHello
from quire.proto.transport.channel import REQUEST_LIMIT_BYTES, Dealer, Router, ipc_address
from quire.proto.transport.wire import plan_decoder, worker_decoder

WAIT = GUARD
LARGE = bytes(REQUEST_LIMIT_BYTES + 1)


@pytest.fixture
def connect(tmp_path) -> Iterator[Callable[..., tuple[Router, list[Dealer]]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    ends: list[Router | Dealer] = []

    def make(*names: bytes, **limits: int) -> tuple[Router, list[Dealer]]:
        address = ipc_address(str(tmp_path), "s")
        router = Router(context, address, worker_decoder(), **limits)
        dealers = [Dealer(context, address, name, plan_decoder()) for name in names]
        ends.extend((router, *dealers))
        return router, dealers

    yield make
    for end in ends:
        end.close()
    context.term()


def received(router: Router) -> tuple[bytes, object]:
    deadline = time.monotonic() + WAIT
    while (message := router.receive()) is None:
        assert time.monotonic() < deadline
        router.socket.poll(100)
    return message


def test_plans_and_results_may_be_larger_than_any_request(connect):
    router, (worker,) = connect(b"w")
    worker.send(WorkerHello(1, 1, 0, 1))
    received(router)
    router.send(b"w", StepPlan(1, 1, b"", LARGE, b"", b""))
    plan = worker.receive(WAIT)
    assert isinstance(plan, StepPlan)
    assert plan.slots == LARGE
    worker.send(StepResult(1, 1, LARGE))
    assert received(router) == (b"w", StepResult(1, 1, LARGE))


def test_a_message_over_the_limit_costs_its_sender_alone(connect):
    router, (greedy, modest) = connect(b"g", b"m", limit_bytes=1000)
    greedy.send(StepResult(1, 1, bytes(2000)))
    modest.send(StepResult(1, 2, bytes(500)))
    assert received(router) == (b"m", StepResult(1, 2, bytes(500)))
    assert router.receive() is None
