"""What several cases need and one makes: a runner, an engine."""

from collections.abc import Callable
from typing import Generic, TypeVar

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
