"""What this project and transformers ask of `torch.cuda`, answered for a chip that is not here.

Its streams, events and graphs queue nothing: torch runs every operation on the host when it is called.
"""

import contextlib
import time
from types import SimpleNamespace
from unittest import mock

import torch

from quire.kernels.gpu.chip import Chip

MEMORY_BYTES = 16 << 30
"""Less than the chip has: memory of the host is promised for all of it, and mostly never touched."""
LEAST_MS = 10.0
"""Between two events: nothing is repeated so that a clock sees it."""
_debug_mode = "default"


def sync_debug_mode() -> str:
    """What was set last: in `error` whatever waits for the device raises."""
    return _debug_mode


def _set_sync_debug_mode(mode: str) -> None:
    global _debug_mode
    _debug_mode = mode


class Stream:
    """Everything on it is done."""

    def __init__(self, device=None, priority=0, **options) -> None:
        self.device = device

    def wait_stream(self, other) -> None: ...
    def wait_event(self, event) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event


class Event:
    """Passed as soon as it is recorded."""

    device = torch.device("cuda", 0)

    def __init__(self, enable_timing=False, blocking=False, interprocess=False) -> None:
        self._moment = 0.0

    def record(self, stream=None) -> None:
        self._moment = time.perf_counter()

    def wait(self, stream=None) -> None: ...
    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        return max(LEAST_MS, 1e3 * (end._moment - self._moment))


class CUDAGraph:
    """What it recorded was run while it was recorded; a replay does nothing."""

    def pool(self) -> tuple[int, int]:
        return (0, 0)

    def replay(self) -> None: ...
    def reset(self) -> None: ...


def standing_in(chip: Chip) -> contextlib.AbstractContextManager[object]:
    """`torch.cuda` inside, in every thread: one device, which is such a chip."""
    major, minor = divmod(chip.capability, 10)
    properties = SimpleNamespace(
        name=chip.name, major=major, minor=minor, total_memory=MEMORY_BYTES, multi_processor_count=chip.processors
    )

    def always(value=None):
        """A function of its own: torch tells them apart by identity."""
        return lambda *args, **options: value

    def inside():
        return lambda *args, **options: contextlib.nullcontext()

    return mock.patch.multiple(
        torch.cuda,
        Stream=Stream, Event=Event, CUDAGraph=CUDAGraph,
        graph=inside(), stream=inside(), device=inside(),
        is_available=always(True), is_initialized=always(True), device_count=always(1), current_device=always(0),
        get_device_name=always(chip.name), get_device_capability=always((major, minor)),
        get_device_properties=always(properties),
        current_stream=always(Stream()), default_stream=always(Stream()),
        synchronize=always(), set_device=always(), empty_cache=always(), set_sync_debug_mode=_set_sync_debug_mode,
        manual_seed=always(), manual_seed_all=always(), get_rng_state=always(), set_rng_state=always(),
        reset_peak_memory_stats=always(),
        mem_get_info=always((MEMORY_BYTES, MEMORY_BYTES)), memory_stats=always({"num_device_alloc": 0}),
        host_memory_stats=always({"num_host_alloc": 0}), memory_reserved=always(0), memory_allocated=always(0),
        max_memory_reserved=always(0), max_memory_allocated=always(0),
    )  # fmt: skip
