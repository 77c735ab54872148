"""The clocks by which stored responses age and leases end: the same for all processes of a machine."""

import time
from typing import NamedTuple


class ClockReading(NamedTuple):
    """Two clocks read at once."""

    wall: float
    """Seconds since 1970, for ages."""
    steady: float
    """Seconds since the machine's boot without those it slept, for leases: their holders sleep with it."""


def read_clocks() -> ClockReading:
    return ClockReading(time.time(), time.monotonic())


def boot_id() -> str:
    """The id of the machine's boot, another one after each."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
