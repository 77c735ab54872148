"""What several cases need and one makes: a runner, an engine."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from report import Case

T = TypeVar("T")


class Shared(Generic[T]):
    """Made when first asked for. Where that failed it fails again at once, so that the time of others is not lost."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._failure: Exception | None = None

    def __call__(self) -> T:
        if self._failure is not None:
            raise RuntimeError(f"not to be had: {self._failure}") from self._failure
        if not self._made:
            try:
                self._made.append(self._make())
            except Exception as error:
                self._failure = error
                raise
        return self._made[0]

    def forget(self) -> None:
        """Make another when it is asked for again: a case has left this one in nobody knows what state."""
        self._made.clear()


def leaving(shared: Sequence[Shared[Any]], cases: Iterator[Case]) -> Iterator[Case]:
    """Cases that raise take what they share with them."""
    for name, run in cases:
        yield Case(name, partial(_dropping, shared, run))


def _dropping(shared: Sequence[Shared[Any]], run: Callable[[], object]) -> None:
    try:
        run()
    except Exception:
        for one in shared:
            one.forget()
        raise
