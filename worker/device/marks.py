"""Points in the device's work, which the host asks for and waits for."""

from dataclasses import dataclass
from typing import Protocol

import torch

Start = torch.cuda.Event | None
"""Event at the beginning of a timed stretch of work; None on the CPU, which is timed by its clock."""


class Mark(Protocol):
    """A point in the device's work: an event recorded behind what is queued so far."""

    def passed(self) -> bool:
        """True once the device is past it; never waits."""
        ...

    def wait(self, before: "Mark | None" = None) -> float:
        """Wait for it; seconds the device worked from the matching `Device.begin` on, but not up to `before`."""
        ...


@dataclass(frozen=True, slots=True)
class HostMark:
    """The CPU runs every operation when it is called: its marks are always passed."""

    seconds: float = 0.0

    def passed(self) -> bool:
        return True

    def wait(self, before: Mark | None = None) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class CudaMark:
    start: torch.cuda.Event
    end: torch.cuda.Event

    def passed(self) -> bool:
        return bool(self.end.query())  # type: ignore[no-untyped-call]

    def wait(self, before: Mark | None = None) -> float:
        with torch.cuda.device(self.end.device):  # a thread of its own would else wake the first device
            self.end.synchronize()
            milliseconds = float(self.start.elapsed_time(self.end))
            if isinstance(before, CudaMark):
                milliseconds -= max(0.0, float(self.start.elapsed_time(before.end)))
            return milliseconds / 1e3
