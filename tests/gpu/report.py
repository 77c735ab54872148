"""What the cases of a part found: one JSON line each, written the moment it is known. Imports no torch."""

import json
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

TRACE_LINES = 24


class Case(NamedTuple):
    """Something that stands or falls alone. Its name says which one it is."""

    name: str
    run: Callable[[], object]


class Given(NamedTuple):
    """What the cases of a part are made of."""

    device: str
    """cuda or cpu"""
    folder: Path
    """Of the process, and gone with it."""
    seed: int
    stands_in: bool = False
    """The GPU is a stand-in: everything runs as on one, and computes nothing."""


class Lost(Exception):
    """What the cases of a process share is gone: the rest needs a new process."""


@dataclass
class Entry:
    """One row of the table: the worst of `count` numbers."""

    name: str
    value: float
    limit: float
    count: int = 1
    detail: str = ""
    compared: bool = True
    """False of what no kernel has written: it means nothing."""

    @property
    def passed(self) -> bool:
        return not self.compared or self.value <= self.limit  # false for NaN


class Report:
    """Of one part. A case that raises is one bad line."""

    def __init__(self, part: str, lines: Path, compares: bool = True) -> None:
        """Without `compares` numbers are noted and judge nothing."""
        self._part = part
        self._lines = lines
        self._compares = compares
        self._entries: dict[str, Entry] = {}
        self._figures: dict[str, Any] = {}

    def case(self, number: int, case: Case, settle: Callable[[], None] = lambda: None) -> Exception | None:
        """Run it and write its line; what it raised. `settle` waits for what it left running, and may raise too."""
        begun = time.monotonic()
        failure = None
        try:
            case.run()
            settle()
        except Exception as error:  # whatever it was, it is this case's line
            failure = error
        self.line(number, case.name, time.monotonic() - begun, failure)
        return failure

    def line(self, number: int, name: str, seconds: float, failure: Exception | None = None) -> None:
        entries = [{**asdict(entry), "passed": entry.passed} for entry in self._entries.values()]
        passed = failure is None and all(entry.passed for entry in self._entries.values())
        line = {"part": self._part, "number": number, "case": name, "passed": passed, "seconds": round(seconds, 3)}
        if failure is not None:
            line["error"] = f"{type(failure).__name__}: {_brief(str(failure))}"
            line["trace"] = "".join(traceback.format_exception(failure)).splitlines()[-TRACE_LINES:]
        append(self._lines, {**line, "entries": entries, "figures": self._figures})
        self._entries, self._figures = {}, {}

    def number(self, name: str, value: float, limit: float, detail: str = "") -> None:
        """`value` must not exceed `limit`; of several of one name the worst is kept."""
        entry = Entry(name, float(value), limit, 1, detail, self._compares)
        worst(self._entries, name, entry)

    def equal(self, name: str, got: Any, wanted: Any, detail: str = "") -> None:
        """Every element of two tensors, bit for bit; NaN equals NaN."""
        from tensors import differing

        self.number(name, differing(got, wanted), 0.0, detail)

    def holds(self, name: str, condition: bool, detail: str = "") -> None:
        self.number(name, 0.0 if condition else 1.0, 0.0, detail)

    def figure(self, name: str, value: Any) -> None:
        """Something measured, which nothing is said of."""
        self._figures[name] = value


def _brief(text: str) -> str:
    """Its first line and its last: what of an engine that died says what it died of."""
    said = text.strip().splitlines()
    return " ... ".join(line[:250] for line in dict.fromkeys((said[0], said[-1]))) if said else ""


def worst(entries: dict[Any, Entry], key: Any, entry: Entry) -> None:
    """Keep in `entries` the worse of what is there and `entry`, and how many there were."""
    before = entries.setdefault(key, entry)
    if before is entry:
        return
    before.count += entry.count
    if before.passed and not (entry.value <= before.value and entry.passed):
        before.value, before.limit, before.detail = entry.value, entry.limit, entry.detail


def append(path: Path, line: dict[str, Any]) -> None:
    """In one write, so that processes may write side by side and none loses what another has written."""
    text = json.dumps(_sound(line), default=str, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


def _sound(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become words that `float` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _sound(one) for key, one in value.items()}
    return [_sound(one) for one in value] if isinstance(value, list | tuple) else value
