"""How long the device worked on a step: its own time alone, whatever of the one before it ran beside it."""

from contextlib import nullcontext

import pytest
import torch

from quire.worker.device.device import Device


class Event:
    """One of torch's, at a millisecond of the device."""

    device = None

    def __init__(self, at):
        self.at = at

    def synchronize(self):
        """It has passed."""

    def elapsed_time(self, other):
        return other.at - self.at


@pytest.fixture
def mark(monkeypatch):
    """`mark(begin, end)` of a step, in milliseconds."""
    times = []
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    device = Device("cpu", 0)

    def make(begin, end):
        times.append(end)
        event = Event(end)
        event.record = lambda: None
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
        return device.mark(Event(begin), 0.0)

    return make


@pytest.mark.parametrize(
    ("before", "seconds"),
    [(None, 0.010), ((0, 90), 0.010), ((0, 104), 0.006)],
    ids=["the first", "behind a gap", "begun while the last one's tokens were on their way"],
)
def test_a_step_counts_from_the_end_of_the_one_before(mark, before, seconds):
    last = None if before is None else mark(*before)
    assert mark(100, 110).wait(last) == pytest.approx(seconds)


def test_the_seconds_of_all_steps_are_never_more_than_passed(mark):
    spans = [(0, 10), (8, 20), (19, 30), (35, 40)]
    marks = [mark(*span) for span in spans]
    worked = sum(one.wait(last) for one, last in zip(marks, [None, *marks], strict=False))
    assert worked == pytest.approx(0.035)
