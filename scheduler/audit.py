"""The time for an audit, and what it looks at: every invariant, of a large prefix cache a part.

Cached prefixes may be millions, and a check of one takes microseconds. A scheduler that is silent for seconds counts as
lost, so audits take turns: as many as there are parts look at all of them.
"""

from quire.scheduler.core.core import Core
from quire.scheduler.state.prefix import NUM_SHARDS

BUSY_FACTOR = 500
"""Intervals after which an audit is due under load."""
MOST_BLOCKS = 1 << 16
"""Blocks of a pool whose cached prefixes one audit looks at, or a shard's if that is more."""


class AuditSchedule:
    """An audit is due `interval_steps` after the last one once nothing lives, or after 500 times as many; 0: never."""

    def __init__(self, interval_steps: int) -> None:
        self._interval_steps = interval_steps
        self._audited_step = 0
        self._turn = 0

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

    def next_part(self, core: Core) -> slice:
        """The part of cached prefixes that `invariants.check` is to look at: the one after that of the last audit."""
        blocks = 0 if core.group_epoch is None else core.group_epoch.memory.pool.num_blocks
        parts = min(max(1, -(-blocks // MOST_BLOCKS)), NUM_SHARDS)
        self._turn = (self._turn + 1) % parts
        return slice(self._turn, None, parts)
