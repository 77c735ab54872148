"""A worker process without a model: the real loop around an executor that draws token 7 for every sampling row.

With `--two-stages` it declares a group of two ranks of which the other one reports.
"""

import logging
import sys

import zmq

from quire.proto.messages.plans import GroupFacts, StepPlan, StepResult
from quire.proto.messages.requests import ModelFacts
from quire.proto.transport.channel import Dealer
from quire.proto.transport.wire import ints, plan_decoder
from quire.worker.loop import Started, Worker, identity


class Step:
    def __init__(self, plan: StepPlan, late: bool) -> None:
        self.plan = plan
        self._late = late

    def done(self) -> bool:
        return not self._late


class Echo:
    def __init__(self, late: bool) -> None:
        self._late = late

    def launch(self, plan: StepPlan) -> Step:
        if plan.slots == ints([666]):
            raise RuntimeError("a fault inside the step")
        return Step(plan, self._late)

    def collect(self, step: Step) -> StepResult:
        return StepResult(step.plan.epoch, step.plan.step, ints([7] * step.plan.samples.count(1)))

    def close(self) -> None:
        """Nothing is held."""


def main(address: str, epoch: int, late: bool) -> int:
    logging.basicConfig(level="INFO")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = Dealer(context, address, identity(0, epoch), plan_decoder())
    facts = ModelFacts(
        max_model_len=1,
        vocab_size=8,
        eos_token_ids=(),
        num_blocks=1,
        block_sizes=(1,),
        kv_bytes=0,
        weight_bytes=0,
        device="none",
        dtype="float32",
        architecture="Echo",
        revision="",
    )
    group = GroupFacts(2, num_stages=2, reporter=1, max_in_flight=3) if "--two-stages" in sys.argv else GroupFacts()
    worker = Worker(dealer, 0, group.world_size, epoch)
    code = worker.run(lambda: Started(Echo(late), facts, group, "", ()))
    dealer.close(linger_ms=1000)
    context.term()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[-2], int(sys.argv[-1]), "--late" in sys.argv))
