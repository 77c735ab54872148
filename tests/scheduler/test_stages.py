"""Plans for four ranks in two stages, of which the third rank reports: a stand-in for pipeline parallelism."""

import sys
from pathlib import Path

import pytest

from quire.proto.messages.plans import GroupFacts, StepAck, StepPlan, StepResult
from quire.proto.messages.requests import Outputs, Welcome
from quire.proto.transport.wire import ints, unpack
from quire.scheduler.state.events import StepAcked, StepDone

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loop_peers import answer, expect, submit

STAGES = GroupFacts(world_size=4, num_stages=2, reporter=2, max_in_flight=3)


@pytest.fixture
def staged(engine):
    return engine(group=STAGES, world_size=4)


def test_as_many_plans_are_in_flight_as_the_group_takes(staged):
    staged.submit(1, 3, max_tokens=50)
    assert [staged.plan().step for _ in range(3)] == [1, 2, 3]
    assert staged.plan() is None
    staged.answer()
    assert staged.plan().step == 4


def test_the_stages_draw_what_one_stage_draws(staged, engine):
    whole = engine()
    for e in (staged, whole):
        for number in range(6):
            e.submit(number, 3 + 5 * number, max_tokens=2 + number)
        e.settle()
    assert staged.tokens == whole.tokens
    assert all(staged.reason(number) == "length" for number in range(6))
    assert staged.free_blocks == staged.facts.num_blocks


def test_the_reporter_answers_by_its_result_alone(staged):
    staged.submit(1, 3, max_tokens=50)
    staged.plan()
    num_stale = staged.core.counters.num_stale
    staged.ack(STAGES.reporter, 1)
    assert staged.core.counters.num_stale == num_stale + 1
    assert not staged.core.group_epoch.in_flight.is_idle
    for rank in (0, 1, 3):
        staged.ack(rank, 1)
    assert not staged.core.group_epoch.in_flight.is_idle
    staged.answer(acks=False)
    assert staged.core.group_epoch.in_flight.is_idle
    assert staged.core.oldest_plan is None


def test_blocks_are_fenced_until_every_rank_of_every_stage_is_done(staged):
    staged.submit(1, 5, max_tokens=1)
    staged.plan()
    staged.answer(acks=False)
    for rank in (0, 1, 3):
        assert staged.free_blocks < staged.facts.num_blocks
        staged.ack(rank, 1)
    assert staged.free_blocks == staged.facts.num_blocks


def test_busy_time_is_of_the_rank_that_sent_it(staged):
    staged.submit(1, 3, max_tokens=3)
    plan = staged.plan()
    staged.handle(StepDone(StepResult(1, 1, ints(plan.drawn), device_seconds=0.5)))
    staged.handle(StepAcked(StepAck(1, 0, 1, 0.25)))
    assert dict(staged.core.step_log.device_busy.totals()) == {0: 0.25, 2: 0.5}


@pytest.mark.parametrize("peers", [{"world_size": 2}], indirect=True)
def test_the_loop_takes_results_of_the_reporter_alone(peers):
    """Rank 1 of two stages of one rank each."""
    group = GroupFacts(2, num_stages=2, reporter=1, max_in_flight=3)
    frontend = peers.frontend(b"f")
    first, last = (peers.ready_worker(name, rank=rank, group=group) for rank, name in enumerate((b"a", b"b")))
    expect(frontend, Welcome, lambda message: message.state == "ready")
    frontend.send(submit(1, max_tokens=1))
    plan = expect(first, StepPlan)
    first.send(StepResult(plan.epoch, plan.step, ints([7])))  # it does not report: dropped
    first.send(StepAck(plan.epoch, 0, plan.step))
    assert answer(last, 9).step == plan.step
    outputs = expect(frontend, Outputs, lambda message: message.token_ids)
    assert unpack(outputs.token_ids).tolist() == [9]
