"""Steps that are not done at once: their results come in order, by a descriptor, and a fault reaches the launcher."""

import select
import sys
import threading
from pathlib import Path

import pytest
from parts.clock import GUARD

from quire.proto.messages.plans import StepResult
from quire.proto.transport.wire import ints
from quire.worker.step.result_thread import ResultThread


def readable(descriptor, seconds=GUARD):
    return bool(select.select([descriptor], [], [], seconds)[0])


def test_putting_never_waits_and_results_come_out_in_the_order_of_the_steps():
    gate = threading.Event()

    def collect(step):
        assert gate.wait(GUARD)
        return StepResult(1, step, b"")

    with ResultThread(collect) as results:
        for step in range(5):
            results.put(step)  # would not return if it waited for the gate
        assert results.num_waiting == 5
        assert not readable(results.descriptor, 0.0)
        gate.set()
        for step in range(5):
            assert readable(results.descriptor)
            assert results.take().step == step
            assert results.num_waiting == 4 - step
        assert not readable(results.descriptor, 0.0)


def test_what_collecting_raises_is_raised_where_the_result_is_taken():
    def collect(step):
        raise RuntimeError(f"step {step} broke")

    with ResultThread(collect) as results:
        results.put(7)
        with pytest.raises(RuntimeError, match="step 7 broke"):
            results.take()


@pytest.fixture
def late(group):
    """A real worker process whose steps are done only later."""
    workers = group(command=[sys.executable, str(Path(__file__).parents[1] / "echo_worker.py"), "--late"])
    workers.join()
    return workers


def test_a_device_that_works_on_its_own_answers_every_plan_even_those_before_the_stop(late, scribe):
    writer = scribe(8)
    writer.admit(0, [1, 2, 3])
    assert late.step(writer.plan([(0, 3)])[1]).token_ids == ints([7])
    for _ in range(50):
        assert late.step(writer.plan([(0, 1)])[1]).step == writer.step
    for _ in range(2):
        late.send(writer.plan([(0, 1)])[1])
    codes = late.stop()
    answers = [late.receive()[1].step for _ in range(2)]
    assert answers == [writer.step - 1, writer.step]
    assert codes == [0]
