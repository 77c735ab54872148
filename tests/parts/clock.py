"""The one guard against hanging, and a wait for what will come: no test is about how fast a machine is."""

import time
from collections.abc import Callable

GUARD = 600.0
"""Seconds after which a wait is given up: many times what the slowest machine needs, so that only a hang meets it."""
_POLL_SECONDS = 0.02


def eventually(holds: Callable[[], bool], story: Callable[[], str] = lambda: "", poll: float = _POLL_SECONDS) -> None:
    """Wait until `holds()`; fails with the story after `GUARD` seconds."""
    until = time.monotonic() + GUARD
    while not holds():
        assert time.monotonic() < until, f"not within {GUARD:g} s: {story()}"
        time.sleep(poll)
