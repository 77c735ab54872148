"""Joins the scheduler, becomes ready, then waits. `die_from_epoch` and `exit_code` in the settings make it
fail, `slow` makes it wait for a file `go` before it is ready."""

import sys
import time

import zmq
from life import DIRECTORY, begin

from quire.proto.messages.plans import GroupFacts, Ready, WorkerHello
from quire.proto.messages.requests import PROTOCOL_VERSION, ModelFacts
from quire.proto.transport.channel import Dealer, ipc_address
from quire.proto.transport.wire import plan_decoder

FACTS = ModelFacts(
    max_model_len=1024,
    vocab_size=100,
    eos_token_ids=(1,),
    num_blocks=128,
    block_sizes=(16,),
    kv_bytes=1 << 20,
    weight_bytes=1 << 20,
    device="none",
    dtype="float32",
    architecture="StandIn",
    revision="r",
)

rank, epoch, world_size = map(int, sys.argv[2:5])
settings = begin(f"worker{rank}", epoch)
if epoch >= settings.get("die_from_epoch", 1 << 30):
    print("the weights are not good", flush=True)
    print("this worker says why it leaves", file=sys.stderr, flush=True)
    sys.exit(settings.get("exit_code", 3))
context = zmq.Context()
identity = f"worker-{epoch}-{rank}".encode()
dealer = Dealer(context, ipc_address(str(DIRECTORY), "workers"), identity, plan_decoder())


def wait_for(event: int) -> None:
    """A signal that comes right before a wait without end is seen after it: these are short."""
    while not dealer.socket.poll(50, event):
        pass


wait_for(zmq.POLLOUT)
dealer.send(WorkerHello(PROTOCOL_VERSION, epoch, rank, world_size))
wait_for(zmq.POLLIN)
dealer.receive(0)
while settings.get("slow") and not (DIRECTORY / "go").exists():
    time.sleep(0.02)
dealer.send(Ready(epoch, rank, FACTS, GroupFacts(world_size), "digest"))
wait_for(zmq.POLLIN)
