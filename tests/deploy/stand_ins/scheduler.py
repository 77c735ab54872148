"""Speaks the scheduler's side of the supervisor's protocol, without any request."""

import sys
import time
import uuid

import zmq
from life import DIRECTORY, begin, note

from quire.proto.messages.plans import Ready, Welcomed, WorkerHello
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Drain,
    Drained,
    GroupFailed,
    GroupLost,
    Hello,
    Limits,
    SchedulerBeat,
    Welcome,
)
from quire.proto.transport.channel import Router, ipc_address
from quire.proto.transport.wire import frontend_decoder, worker_decoder

LIMITS = Limits(
    max_num_seqs=1,
    max_num_batched_tokens=1,
    max_num_queued_reqs=1,
    max_num_queued_tokens=1,
    priority_enabled=False,
    max_timeout_seconds=1.0,
)

settings = begin("scheduler")
world_size = int(sys.argv[2])
life, state, facts, epoch, lives = uuid.uuid4().hex, "starting", None, 0, False
ready: dict[int, set[int]] = {}
supervisor = b""
context = zmq.Context()
front = Router(context, ipc_address(str(DIRECTORY), "frontends"), frontend_decoder())
back = Router(context, ipc_address(str(DIRECTORY), "workers"), worker_decoder())
poller = zmq.Poller()
poller.register(front.socket, zmq.POLLIN)
poller.register(back.socket, zmq.POLLIN)
next_beat = 0.0


def welcome() -> None:
    if supervisor:
        front.send(supervisor, Welcome(PROTOCOL_VERSION, life, state, LIMITS, facts, "", epoch, lives))


while True:
    poller.poll(50)
    while received := back.receive():
        identity, message = received
        if isinstance(message, WorkerHello):
            back.send(identity, Welcomed(message.epoch))
        elif isinstance(message, Ready):
            ready.setdefault(message.epoch, set()).add(message.rank)
            if len(ready[message.epoch]) == world_size:
                facts, epoch, lives = message.facts, message.epoch, True
                state = state if state == "draining" else "ready"
                note("group_ready", "scheduler", epoch)
                welcome()
    while received := front.receive():
        identity, message = received
        match message:
            case Hello():
                supervisor = identity
                welcome()
            case GroupLost():
                note("group_lost", "scheduler", message.epoch, message.reason)
                state, lives = (state if state == "draining" else "recovering"), False
                welcome()
            case GroupFailed():
                note("group_failed", "scheduler", message.reason)
                state = "failed"
                welcome()
            case Drain():
                note("drain", "scheduler", message.timeout_seconds)
                state = "draining"
                if not settings.get("never_drained"):
                    front.send(identity, Drained(0))
    if (DIRECTORY / "give_up_group").exists():
        (DIRECTORY / "give_up_group").unlink()
        state, lives = (state if state == "draining" else "recovering"), False
        welcome()
    if supervisor and time.monotonic() >= next_beat:
        next_beat = time.monotonic() + 0.1
        front.send(supervisor, SchedulerBeat(epoch, 0, is_idle=True))
