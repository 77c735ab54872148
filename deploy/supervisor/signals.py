"""Signals that stop an engine, counted: the first asks for a drain, the second stops at once."""

import signal
from types import FrameType, TracebackType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalCounter:
    """A context manager: while inside, stop signals are counted and do nothing else. Main thread only."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "SignalCounter":
        self._before = [signal.signal(number, self._on_signal) for number in STOP_SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in zip(STOP_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
