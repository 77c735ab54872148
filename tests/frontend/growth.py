"""How work grows with the size of what it is done on, by the processor's own clock.

Four times the size is four times the work for a linear one, sixteen for a square.
"""

import contextlib
import gc
import time
from collections.abc import Callable

import pytest

from quire.proto.messages.params import ParameterError

MOST = 9.0
"""Between the two, nearer in steps of doubling to neither."""

Work = Callable[[], object]


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What was there before is not looked through again for every figure."""
    gc.collect()
    gc.freeze()


def written(parser: Callable[[], object], text: Callable[[int], str], piece: int = 1) -> Callable[[int], Work]:
    """A parser of a model's output, fed as tokens come."""

    def make(num: int) -> Work:
        said = text(num)

        def work() -> None:
            reader = parser()
            for start in range(0, len(said), piece):
                reader.feed(said[start : start + piece])
            reader.finish()

        return work

    return make


def seconds(make: Callable[[int], Work], num: int, tries: int = 3) -> float:
    """The least time of some tries."""
    work, best = make(num), float("inf")
    for _ in range(tries):
        gc.collect()
        begin = time.thread_time()
        with contextlib.suppress(ParameterError):
            work()
        best = min(best, time.thread_time() - begin)
    gc.enable()
    return best


def check_linear(make: Callable[[int], Work], num: int, tries: int = 3, most: float = MOST) -> None:
    """Raises `AssertionError` where four times as much takes far more than four times as long."""
    least = [float("inf"), float("inf")]
    for _ in range(12):  # other processes may take the cache, and the core's other half, for long
        least = [min(best, seconds(make, size, tries)) for best, size in zip(least, (num, 4 * num), strict=True)]
        if least[1] < most * max(least[0], 1e-5):
            return
    raise AssertionError(f"4 times as much took {least[1] / least[0]:.1f} times as long")
