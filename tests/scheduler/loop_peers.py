"""Scripted processes at the sockets of a scheduler's loop."""

import time

import numpy as np
import zmq
from parts.clock import GUARD

from quire.proto.messages.params import SamplingParams
from quire.proto.messages.plans import GroupFacts, Ready, StepPlan, StepResult, Welcomed, WorkerHello
from quire.proto.messages.requests import (
    PROTOCOL_VERSION,
    Hello,
    ModelFacts,
    Submit,
)
from quire.proto.transport.channel import Dealer, ipc_address
from quire.proto.transport.wire import ints, plan_decoder, scheduler_decoder
from quire.scheduler.loop import SchedulerLoop

WAIT = GUARD
FACTS = ModelFacts(
    max_model_len=64,
    vocab_size=100,
    eos_token_ids=(0,),
    num_blocks=32,
    block_sizes=(4,),
    kv_bytes=1,
    weight_bytes=1,
    device="cpu",
    dtype="float32",
    architecture="LlamaForCausalLM",
    revision="r",
)


ONE = GroupFacts()


class Peers:
    """Makes the sockets of the scripted processes."""

    def __init__(self, run_dir: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.frontends_address = ipc_address(run_dir, "frontends")
        self.workers_address = ipc_address(run_dir, "workers")
        self._open: list[Dealer] = []
        self.loop: SchedulerLoop

    def worker(self, name: bytes, epoch: int = 1, rank: int = 0, world_size: int = 1) -> Dealer:
        dealer = Dealer(self.context, self.workers_address, name, plan_decoder())
        self._open.append(dealer)
        dealer.send(WorkerHello(PROTOCOL_VERSION, epoch, rank, world_size))
        return dealer

    def ready_worker(self, name: bytes, epoch: int = 1, rank: int = 0, group: GroupFacts = ONE) -> Dealer:
        worker = self.worker(name, epoch, rank, group.world_size)
        assert worker.receive(WAIT) == Welcomed(epoch)
        worker.send(Ready(epoch, rank, FACTS, group, "digest"))
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
