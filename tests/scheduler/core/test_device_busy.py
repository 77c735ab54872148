"""Busy time of each rank's device: exact in total, and a share of the last ten seconds that falls when it rests."""

import pytest

from quire.proto.messages.plans import StepAck, StepResult
from quire.proto.transport.wire import ints
from quire.scheduler.core.device_busy import DeviceBusy
from quire.scheduler.state.events import StepAcked, StepDone


def test_the_share_is_of_the_last_ten_whole_seconds():
    busy = DeviceBusy()
    for second in range(20, 40):
        for part in (0.3, 0.6):
            busy.add(0, 0.25, second + part)
        busy.add(1, 0.25, second + 0.25)
    assert dict(busy.totals()) == {0: 10.0, 1: 5.0}
    assert dict(busy.shares(40.0)) == {0: 0.5, 1: 0.25}
    assert dict(busy.shares(45.0)) == {0: 0.25, 1: 0.125}, "it rests"
    assert dict(busy.shares(50.0)) == {0: 0.0, 1: 0.0}
    assert dict(busy.totals()) == {0: 10.0, 1: 5.0}


def test_a_step_longer_than_the_window_is_a_whole_one():
    busy = DeviceBusy()
    busy.add(0, 25.0, 31.0)
    assert dict(busy.shares(31.0)) == {0: 1.0}
    assert dict(busy.shares(36.0)) == {0: 0.5}


def test_a_step_counts_in_the_seconds_in_which_it_ran():
    busy = DeviceBusy()
    for answered in range(4, 44, 4):  # one of four seconds behind another
        busy.add(0, 4.0, float(answered))
    assert dict(busy.shares(40.0)) == {0: 1.0}
    assert [next(busy.shares(float(now)))[1] for now in (41, 45)] == pytest.approx([0.9, 0.5])
    busy = DeviceBusy()
    busy.add(0, 12.0, 12.9)
    assert [next(busy.shares(float(now)))[1] for now in (13, 22, 23)] == pytest.approx([0.99, 0.09, 0.0])


def test_nothing_is_told_of_ranks_that_never_answered():
    assert list(DeviceBusy().totals()) == list(DeviceBusy().shares(5.0)) == []


def test_every_rank_counts_by_its_own_answers(engine):
    e = engine(world_size=2)
    e.submit(1, 10, max_tokens=3)
    plan = e.plan()
    e.plans.popleft()
    e.now += 1.0
    e.handle(StepDone(StepResult(1, 1, ints(plan.drawn), device_seconds=0.5)))
    e.handle(StepAcked(StepAck(1, 1, 1, 0.25)))
    e.handle(StepAcked(StepAck(1, 1, 1, 0.25)))  # the same acknowledgement twice
    assert dict(e.core.step_log.device_busy.totals()) == {0: 0.5, 1: pytest.approx(0.25)}
