"""The metrics of all frontends of one engine: they share a port, so a scrape reaches any of them and must see them all.

Every frontend writes what it counted into a file of its own, once a second and at every scrape, so that a number that
was shown is never taken back. A frontend that is restarted goes on from the file of the one before it.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from quire.frontend.fault_log import FaultLog
from quire.frontend.metrics.families import FAMILIES
from quire.frontend.metrics.metrics import Labels, Metrics
from quire.proto.messages.introspection import Distribution, Figure

STALE_SECONDS = 5.0
"""Age from which a snapshot is of a frontend that is gone: its counters stay, its gauges are left out."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The metrics of one frontend at one time."""

    written_at: float
    """On the machine's monotonic clock."""
    samples: tuple[Figure, ...]
    distributions: tuple[Distribution, ...]

    def is_fresh(self, now: float) -> bool:
        return 0 <= now - self.written_at < STALE_SECONDS


class Snapshots:
    """One file per frontend in `run_dir`/metrics; without a `run_dir` a frontend knows only itself."""

    def __init__(self, metrics: Metrics, run_dir: str, index: int) -> None:
        """Raises `ValueError` when the folder cannot be made."""
        self._metrics = metrics
        self._decoder = msgspec.msgpack.Decoder(Snapshot)
        self._path: Path | None = None
        self._unread: dict[Path, FaultLog] = {}
        if not run_dir:
            return
        folder = Path(run_dir) / "metrics"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ValueError(f"run_dir {run_dir}: {error.strerror}; it must be a directory of yours") from error
        self._path = folder / f"frontend-{index}.bin"
        self._unwritten = FaultLog(f"metrics snapshot {self._path}: is written again")
        before = self._read(self._path)
        if before is not None:
            metrics.resume_from(before.samples, before.distributions)

    def write(self) -> Snapshot:
        """Write this frontend's snapshot, whole or not at all; the snapshot."""
        snapshot = Snapshot(time.monotonic(), self._metrics.samples(), self._metrics.distributions())
        if self._path is not None:
            partial = self._path.with_suffix(f".{os.getpid()}.partial")
            try:
                partial.write_bytes(msgspec.msgpack.encode(snapshot))
                os.replace(partial, self._path)
            except OSError as error:  # a full disk must not end a frontend
                what = f"metrics snapshot {self._path}: {error.strerror}: let this process write there"
                self._unwritten.begin(f"{what}; other frontends' pages lack its figures meanwhile")
            else:
                self._unwritten.end()
        return snapshot

    def all(self) -> list[Snapshot]:
        """The snapshots of every frontend that this engine has or had, this one's as of now."""
        own = self.write()
        if self._path is None:
            return [own]
        others = [self._read(path) for path in sorted(self._path.parent.glob("*.bin")) if path != self._path]
        return [own, *(other for other in others if other is not None)]

    def _read(self, path: Path) -> Snapshot | None:
        fault_log = self._unread.setdefault(path, FaultLog(f"metrics snapshot {path}: is read again"))
        try:
            snapshot = self._decoder.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            fault_log.begin(f"metrics snapshot {path} is not read: {error}")
            return None
        fault_log.end()
        return snapshot


def total(snapshots: Iterable[Snapshot], now: float) -> tuple[list[Figure], list[Distribution]]:
    """The sums of all frontends per series, gauges of living ones only, and the number of living ones."""
    values: dict[tuple[str, Labels], float] = {}
    sums: dict[tuple[str, Labels], Distribution] = {}
    num_fresh = 0
    for snapshot in snapshots:
        fresh = snapshot.is_fresh(now)
        num_fresh += fresh
        for sample in snapshot.samples:
            family = FAMILIES.get(sample.name)
            if family is not None and (fresh or family.kind == "counter"):
                key = (sample.name, sample.labels)
                values[key] = values.get(key, 0.0) + sample.value
        for one in snapshot.distributions:
            other = sums.get((one.name, one.labels))
            sums[one.name, one.labels] = one if other is None else _sum(other, one)
    samples = [Figure(name, value, labels) for (name, labels), value in values.items()]
    return [*samples, Figure("frontends", num_fresh)], list(sums.values())


def _sum(one: Distribution, other: Distribution) -> Distribution:
    if one.bounds != other.bounds:  # of another version of quire, in a directory that outlived it
        return one
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Distribution(one.name, one.bounds, counts, one.sum + other.sum, one.labels)
