"""Tokens that experts were sent: since the scheduler's start, and how evenly in the last minute."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from quire.proto.messages.introspection import Figure
from quire.proto.messages.plans import ExpertTokens

WINDOW_SECONDS = 60.0

Counts = npt.NDArray[np.int64]


class ExpertLoad:
    """Sums over all worker groups; each reports what it has counted itself."""

    def __init__(self) -> None:
        self._epoch = 0
        self._before: Counts | None = None
        """int64 [experts]: of the groups before this one; None: no group has reported."""
        self._begins: tuple[int, ...] = ()
        self._layers: tuple[int, ...] = ()
        self._seen: deque[tuple[float, Counts]] = deque()
        """Time and counts int64 [layers, experts] of this group's reports: the newest that is older than the window,
        and those within it."""

    def take(self, epoch: int, report: ExpertTokens, now: float) -> None:
        """Take a report of the group of this epoch, the newest."""
        counts = np.frombuffer(report.counts, np.int64).reshape(len(report.layers), -1)
        if self._before is None:
            self._before = np.zeros(counts.shape[1], np.int64)
        if epoch != self._epoch:
            if self._seen:
                self._before = self._before + self._seen[-1][1].sum(axis=0)
            self._epoch, self._layers, self._begins = epoch, report.layers, report.begins
            self._seen = deque([(now, np.zeros_like(counts))])
        self._seen.append((now, counts))
        self._drop_old(now)

    def figures(self, now: float) -> Iterator[Figure]:
        """None before the first report; ratios of layers that were sent tokens in the window."""
        if self._before is None:
            return
        self._drop_old(now)
        newest = self._seen[-1][1]
        for expert, count in enumerate((self._before + newest.sum(axis=0)).tolist()):
            yield Figure("expert_tokens_total", count, (("expert", str(expert)),))
        recent = newest - self._seen[0][1]
        yield from self._imbalance("expert_imbalance_ratio", recent)
        if self._begins:
            yield from self._imbalance("expert_rank_imbalance_ratio", np.add.reduceat(recent, self._begins, axis=1))

    def _imbalance(self, name: str, counts: Counts) -> Iterator[Figure]:
        for layer, row in zip(self._layers, counts, strict=True):
            if row.any():
                yield Figure(name, float(row.max() / row.mean()), (("layer", str(layer)),))

    def _drop_old(self, now: float) -> None:
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
