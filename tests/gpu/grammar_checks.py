"""Grammars in steps that are launched before the last one is collected, as an engine launches them.

A mask is made from the token that the step before drew, in a thread beside the launching one, and goes to the device
behind the layers: from pinned memory, on the stream of the sampling.
"""

from options import LETTERS
from plans import Hand, tokens
from report import Report

from quire.proto.messages.params import SamplingParams, Structured
from quire.proto.messages.plans import StepPlan
from quire.worker.device.device import Device
from quire.worker.step.runner import InFlight, Runner

GUIDED = SamplingParams(temperature=0.9, seed=5, max_tokens=10_000, structured=Structured("regex", "[ab]{60}"))
FREE = SamplingParams(temperature=0.9, seed=5, max_tokens=10_000, ignore_eos=True)
ROWS, STEPS, IN_FLIGHT = 8, 24, 2


class Launching:
    """A runner whose steps stay in flight: `Hand.run` then returns the launched step."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, plan: StepPlan) -> InFlight:
        return self._runner.launch(plan)

    def collect(self, step: InFlight) -> InFlight:
        return step


def check_ahead(report: Report, eager: Runner, graphed: Runner, device: Device, block_size: int) -> None:
    """Every second row has a grammar. Launched ahead, eager or captured, they draw what they draw one by one."""
    wanted = _drawn(eager, block_size, 1)
    before = device.num_allocations()
    for name, one in (("eager", eager), ("captured", graphed)):
        got = _drawn(one, block_size, IN_FLIGHT)
        report.holds(f"grammars in steps ahead of their results, {name}: tokens", got == wanted, f"{got} not {wanted}")
    report.holds("a grammar is kept ahead of results", all(t in LETTERS for row in got for t in row[1::2]), f"{got}")
    report.figure("memory taken by uploads of masks", device.num_allocations() - before)


def _drawn(runner: Runner, block_size: int, in_flight: int) -> list[list[int]]:
    """Tokens of each step, of which so many are in flight at once."""
    hand = Hand(Launching(runner), block_size)
    for slot in range(ROWS):
        hand.admit(slot, [5 + slot] * 16, GUIDED if slot % 2 else FREE, room=STEPS)
    flying, drawn = [], []
    for step in range(STEPS):
        flying.append(hand.run([(slot, 1 if step else 16) for slot in range(ROWS)]))
        if len(flying) == in_flight:
            drawn.append(tokens(runner.collect(flying.pop(0))))
    drawn += [tokens(runner.collect(step)) for step in flying]
    runner.collect(hand.run((), releases=range(ROWS)))
    return drawn
