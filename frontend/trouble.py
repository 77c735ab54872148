"""What lasts and would be noticed again and again: the log hears of its beginning, its change and its end."""

import logging

_log = logging.getLogger("quire.frontend")


class Trouble:
    """One thing that may go wrong for a while. Both methods may be called as often as it is looked at."""

    def __init__(self, over: str) -> None:
        """`over` is logged when it is."""
        self._over = over
        self._what = ""

    def is_there(self, what: str) -> None:
        """It is logged unless it is what was logged last."""
        if what != self._what:
            self._what = what
            _log.warning("%s", what)

    def ends(self) -> None:
        if self._what:
            self._what = ""
            _log.warning("%s", self._over)
