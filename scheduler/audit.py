"""The time for an audit: a check of every invariant takes tens of milliseconds."""

from quire.scheduler.core.core import Core

BUSY_FACTOR = 500
"""Intervals after which an audit is due under load."""


class AuditSchedule:
    """An audit is due `interval_steps` after the last one once nothing lives, or after 500 times as many; 0: never."""

    def __init__(self, interval_steps: int) -> None:
        self._interval_steps = interval_steps
        self._audited_step = 0

    def is_due(self, core: Core) -> bool:
        """An audit must take place now; the next interval begins."""
        interval = self._interval_steps
        steps = core.step - self._audited_step
        if steps < 0:  # a new epoch counts from 1 again
            self._audited_step = steps = 0
        if not interval or steps < interval or (core.num_live and steps < interval * BUSY_FACTOR):
            return False
        self._audited_step = core.step
        return True
