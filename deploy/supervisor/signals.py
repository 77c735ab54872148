"""Signals that stop a command: at once while nothing runs that must end in order, else as often as they come."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Besides SIGINT, which Python makes a `KeyboardInterrupt`."""
_COUNTED = (*_ENDING, signal.SIGINT)


class Stopped(BaseException):
    """A stop signal has come."""


class StopSignals:
    """The stop signals of this process: the first asks an engine for a drain, the second stops it at once.

    One that was ignored when the process began stays ignored: `nohup` does that to SIGHUP, a shell to SIGINT of what it
    starts in the background. Main thread only.
    """

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def raised(self) -> Iterator[None]:
        """While inside, the first signal raises `Stopped`: without a handler, process 1 of a container hears none."""

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self.count += 1
            if self.count == 1:  # a second one must not keep the first from cleaning up
                raise Stopped

        with _handled(_ENDING, on_signal):
            yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """While inside, signals are counted and do nothing else."""

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self.count += 1

        with _handled(_COUNTED, on_signal):
            yield


@contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in numbers}
    ours = [number for number in numbers if before[number] != signal.SIG_IGN]
    try:
        for number in ours:
            signal.signal(number, handler)
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
