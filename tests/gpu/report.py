"""What was checked, how far off it was, and how far it may be. A part that fails or does not finish is a failure."""

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass
class Entry:
    """One row of the table: the worst of `count` numbers."""

    part: str
    name: str
    value: float
    limit: float
    count: int = 1
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.value <= self.limit  # false for NaN


class Report:
    def __init__(self) -> None:
        self._part = ""
        self._deadline = float("inf")
        self._entries: dict[tuple[str, str], Entry] = {}
        self.seconds: dict[str, float] = {}

    @property
    def passed(self) -> bool:
        return all(entry.passed for entry in self._entries.values())

    def part(self, name: str, budget: float, run: Callable[[], object]) -> None:
        """What `run` adds belongs to `name`; an exception is a failed entry, and the caller goes on."""
        begun = time.monotonic()
        self._part, self._deadline = name, begun + budget
        try:
            self.go_on()
            run()
        except Exception as error:
            print(traceback.format_exc(), flush=True)
            lines = str(error).strip().splitlines()
            self._add("ran to its end", float("inf"), 0.0, f"{type(error).__name__}: {lines[0] if lines else ''}"[:300])
        self.seconds[name] = time.monotonic() - begun
        print(f"[{name}: {self.seconds[name]:.1f} s]", flush=True)

    def go_on(self) -> None:
        """Raises TimeoutError when the part has used up its time: what was not checked must not look checked."""
        if time.monotonic() > self._deadline:
            raise TimeoutError(f"{self._part}: out of time")

    def number(self, name: str, value: float, limit: float, detail: str = "") -> None:
        """`value` must not exceed `limit`; of several of one name the worst is kept."""
        self._add(name, float(value), limit, detail)

    def equal(self, name: str, got: torch.Tensor, wanted: torch.Tensor, detail: str = "") -> None:
        """Every element, bit for bit; NaN equals NaN."""
        different = got.shape != wanted.shape or not torch.equal(bits(got), bits(wanted))
        self._add(name, float(different and (bits(got) != bits(wanted)).sum()), 0.0, detail)

    def holds(self, name: str, condition: bool, detail: str = "") -> None:
        self._add(name, 0.0 if condition else 1.0, 0.0, detail)

    def _add(self, name: str, value: float, limit: float, detail: str) -> None:
        entry = Entry(self._part, name, value, limit, 1, detail)
        before = self._entries.setdefault((self._part, name), entry)
        if before is entry:
            return
        before.count += 1
        if before.passed and not (value <= before.value and entry.passed):
            before.value, before.limit, before.detail = value, limit, detail

    def show(self) -> None:
        print(f"{'part':<12} {'what':<58} {'cases':>5} {'worst':>10} {'limit':>9}")
        for entry in self._entries.values():
            mark = "" if entry.passed else f"  FAILED  {entry.detail}"
            head = f"{entry.part:<12} {entry.name:<58} {entry.count:>5}"
            print(f"{head} {entry.value:>10.3g} {entry.limit:>9.3g}{mark}")
        failed = sum(not entry.passed for entry in self._entries.values())
        print(f"{len(self._entries)} rows, {failed} failed, {sum(self.seconds.values()):.0f} s of work", flush=True)

    def document(self) -> dict[str, Any]:
        entries = [{**asdict(entry), "passed": entry.passed} for entry in self._entries.values()]
        return {"passed": self.passed, "seconds": self.seconds, "entries": entries}

    def take(self, part: str, document: dict[str, Any] | None, otherwise: str) -> None:
        """Add what another process found; without a document the part has failed, for the reason given."""
        self._part = part
        if document is None:
            self._add("ran to its end", float("inf"), 0.0, otherwise)
            return
        self.seconds |= document["seconds"]
        for entry in document["entries"]:
            del entry["passed"]
            self._entries[part, entry["name"]] = Entry(**entry)

    def write(self, path: Path, facts: dict[str, object]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {**facts, **self.document()}
        path.write_text(json.dumps(document, indent=1, default=str) + "\n")
        print(f"written: {path}")


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same bits as whole numbers, with one pattern for every NaN."""
    if not x.is_floating_point():
        return x
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = x.float() if x.dtype == torch.float8_e4m3fn else x
    return found.masked_fill(found.isnan(), float("nan")).contiguous().view(kinds[found.element_size()])


def row_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The worst row's ||got - wanted|| / ||wanted||, rows along the last dimension; NaN when a NaN is in `got`."""
    if not wanted.numel():
        return 0.0 if got.shape == wanted.shape else float("inf")
    wide, reference = got.double(), wanted.double()
    scale = reference.norm(dim=-1).clamp(min=1e-3 * float(reference.norm()) / max(1, reference[..., 0].numel()) ** 0.5)
    return float(((wide - reference).norm(dim=-1) / scale.clamp(min=1e-30)).max())


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """New tensors hold NaN, or the largest whole number, until something is written."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
