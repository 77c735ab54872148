"""Detection of changes in files that an operator may replace while the server runs."""

import os
import time
from collections.abc import Callable, Sequence

LOOK_SECONDS = 1.0

Clock = Callable[[], float]


class WatchedFiles:
    """Files that are looked at when they are used, at most once a second: no thread, no task, nothing to stop."""

    def __init__(self, paths: Sequence[str], clock: Clock = time.monotonic) -> None:
        self._paths = [path for path in paths if path]
        self._clock = clock
        self._seen = self._look()
        self._next = clock() + LOOK_SECONDS

    def changed(self) -> bool:
        """True when a file was written, replaced or removed since the last True. A symlink counts as its target."""
        now = self._clock()
        if not self._paths or now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> list[tuple[int, ...]]:
        return [_fingerprint(path) for path in self._paths]


def _fingerprint(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
