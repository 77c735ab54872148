"""The log of faults that last and are noticed again and again: one line when a fault begins, changes and ends."""

import logging

_log = logging.getLogger("quire.frontend")


class FaultLog:
    """One fault that may come and go. Both methods may be called as often as it is looked for."""

    def __init__(self, over: str) -> None:
        """`over` is logged when the fault ends."""
        self._over = over
        self._what = ""

    def begin(self, what: str) -> None:
        """The fault is there; `what` is logged unless it was logged last."""
        if what != self._what:
            self._what = what
            _log.warning("%s", what)

    def end(self) -> None:
        """The fault is not there."""
        if self._what:
            self._what = ""
            _log.warning("%s", self._over)
