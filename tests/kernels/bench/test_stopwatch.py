"""The arithmetic of timing, on a device and a clock that are made up."""

import contextlib

import pytest
import torch

from quire.kernels.bench import stopwatch


class Chip:
    """A device whose every call takes a millisecond, and whose graphs take as long as what they recorded."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recording: list[int] | None = None
        self.most_recorded = 0

    def call(self) -> None:
        if self.recording is None:
            self.now += 1.0
        else:
            self.recording[0] += 1

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chip = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = chip.now

            def synchronize(self) -> None:
                return None

            def elapsed_time(self, later: "Event") -> float:
                return later.at - self.at

        class Graph:
            def __init__(self) -> None:
                self.calls = [0]

            def replay(self) -> None:
                chip.now += self.calls[0]

        @contextlib.contextmanager
        def record(graph: Graph):
            chip.recording = graph.calls
            yield
            chip.recording = None
            chip.most_recorded = max(chip.most_recorded, graph.calls[0])

        for name, value in (("Event", Event), ("CUDAGraph", Graph), ("graph", record), ("synchronize", lambda _: None)):
            monkeypatch.setattr(torch.cuda, name, value)


@pytest.mark.parametrize(("num_calls", "recorded"), [(1, 5), (2, 6), (32, 32)])
def test_a_graph_is_long_enough_and_its_time_is_shared_by_its_calls(monkeypatch, num_calls, recorded) -> None:
    chip = Chip()
    chip.install(monkeypatch)
    found = stopwatch.milliseconds([chip.call] * num_calls, torch.device("cuda"), 0.0)
    assert found == pytest.approx(1.0)
    assert chip.most_recorded == recorded


def test_what_waits_for_the_device_is_not_recorded(monkeypatch) -> None:
    chip = Chip()
    chip.install(monkeypatch)
    assert stopwatch.milliseconds([chip.call] * 3, torch.device("cuda"), 0.0, waits=True) == pytest.approx(1.0)
    assert chip.most_recorded == 0


def test_on_a_cpu_calls_run_in_turn() -> None:
    order: list[int] = []
    calls = [lambda index=index: order.append(index) for index in range(3)]
    assert stopwatch.milliseconds(calls, torch.device("cpu"), 1e-9) >= 0.0
    assert order == [0, 1, 2, 0, 1, 2]
