"""The highest load that keeps a service level: doubled until it does not, then narrowed down."""

from collections.abc import Awaitable, Callable, Sequence

from quire.deploy.bench.load.request_record import RequestRecord
from quire.deploy.bench.load.service_level import KEPT_SHARE, ServiceLevel
from quire.deploy.bench.report.errors import BenchError

TOLERANCE = 1.05
"""The load that was not kept, over the one that was, at the end of a search that is close enough."""
LOWEST_PART = 16
"""A part of the load to begin with: when not even that is kept, none is."""


class Sweep:
    """Runs at one load after another.

    `run(load)` sends requests and returns their records; `is_whole`: loads are whole numbers.
    """

    def __init__(
        self, run: Callable[[float], Awaitable[list[RequestRecord]]], level: ServiceLevel, *, is_whole: bool
    ) -> None:
        self.shares: dict[float, float] = {}
        """Load -> the share of its requests within the level, in the order of the runs."""
        self.records: list[RequestRecord] = []
        """Those of the highest load that was kept; where none was, of the last."""
        self._run = run
        self._level = level
        self._is_whole = is_whole

    async def highest(self, start: float) -> float:
        """The highest load that was kept, 0.0 where none down to `start / 16` was.

        Raises `BenchError` where the runs are too short to tell.
        """
        kept, missed, load = 0.0, 0.0, start
        while True:
            if await self._keeps(load):
                kept = load
            else:
                missed = load
            load = self._between(kept, missed)
            if kept and missed and (missed / kept <= TOLERANCE or load in (kept, missed)):
                return kept
            if not kept and load < max(start / LOWEST_PART, float(self._is_whole)):
                return 0.0

    def _between(self, kept: float, missed: float) -> float:
        if not missed:
            return 2 * kept
        load = (kept * missed) ** 0.5 if kept else missed / 2
        return float(round(load)) if self._is_whole else load

    async def _keeps(self, load: float) -> bool:
        records = await self._run(load)
        self.shares[load] = self._level.share(records)
        keeps = self.shares[load] >= KEPT_SHARE
        if keeps and _is_burst(records):
            raise BenchError(
                f"--sweep: at {load:g} all {len(records)} requests were sent before the first was answered, and kept "
                "--slo: too few to find a limit; give more with --num-prompts or --frames"
            )
        if keeps or not any(share >= KEPT_SHARE for share in self.shares.values()):
            self.records = records
        return keeps


def _is_burst(records: Sequence[RequestRecord]) -> bool:
    return len(records) > 1 and max(one.sent for one in records) < min(one.ended for one in records)
