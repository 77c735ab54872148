"""All lines of a run: the table, the document, and last of all what failed, in few lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report import Entry, append, worst

MOST_FAILURES = 30
WIDTH = 230
"""Of a failure's line: all of them fit the end of a console that keeps 12 000 characters."""


class Summary:
    def __init__(self, lines: Path, compares: bool = True) -> None:
        """Without `compares` it says what ran, and never that anything passed."""
        self.compares = compares
        texts = lines.read_text().splitlines() if lines.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(text) for text in texts]
        self.entries: dict[tuple[str, str], Entry] = {}
        for line in self.lines:
            for entry in line["entries"]:
                found = {key: value for key, value in entry.items() if key != "passed"}
                found |= {key: float(found[key]) for key in ("value", "limit")}
                worst(self.entries, (line["part"], entry["name"]), Entry(**found))

    @property
    def passed(self) -> bool:
        return bool(self.lines) and all(line["passed"] for line in self.lines)

    @property
    def seconds(self) -> dict[str, float]:
        """Of cases, by part."""
        found: dict[str, float] = {}
        for line in self.lines:
            found[line["part"]] = found.get(line["part"], 0.0) + line["seconds"]
        return found

    def figures(self, *parts: str) -> dict[str, Any]:
        """What was measured, of these parts or of all."""
        chosen = [line["figures"] for line in self.lines if not parts or line["part"] in parts]
        return {name: value for figures in chosen for name, value in figures.items()}

    def miss(self, lines: Path, parts: list[str]) -> None:
        """A part without a line has failed: write one."""
        for part in parts:
            if part not in self.seconds:
                line = {"part": part, "number": -1, "case": "any", "passed": False, "seconds": 0.0,
                        "error": "found nothing", "entries": [], "figures": {}}  # fmt: skip
                append(lines, line)
                self.lines.append(line)

    def failures(self) -> Iterator[str]:
        """One line each: what raised, then the worst number of each case that is off."""
        for line in self.lines:
            if line["passed"]:
                continue
            head = f"{line['part']}: {line['case']}"
            if "error" in line:
                yield f"{head}: {line['error']}"
            for entry in line["entries"]:
                if not entry["passed"]:
                    yield f"{head}: {entry['name']} is {entry['value']}, at most {entry['limit']} ({entry['detail']})"

    def table(self) -> None:
        print(f"{'part':<12} {'what':<58} {'cases':>5} {'worst':>10} {'limit':>9}")
        for (part, name), entry in self.entries.items():
            head = f"{part:<12} {name:<58} {entry.count:>5} {entry.value:>10.3g} {entry.limit:>9.3g}"
            print(head + ("  not compared" if not entry.compared else "" if entry.passed else "  FAILED"))

    def verdict(self) -> None:
        """The last words."""
        failures = list(self.failures())
        for text in failures[:MOST_FAILURES]:
            print(f"FAILED {text}"[:WIDTH])
        if len(failures) > MOST_FAILURES:
            print(f"and {len(failures) - MOST_FAILURES} more")
        bad = sum(not line["passed"] for line in self.lines)
        spent = " ".join(f"{part} {seconds:.0f}" for part, seconds in self.seconds.items())
        print(f"{len(self.lines)} cases, {bad} failed; seconds: {spent}")
        well = "PASSED" if self.compares else "RAN to its end on a stand-in: nothing was computed, compared or measured"
        print(well if self.passed else "FAILED", flush=True)

    def document(self) -> dict[str, Any]:
        """For the file beside the lines."""
        entries = [
            {"part": part, "name": name, "value": entry.value, "limit": entry.limit, "count": entry.count,
             "detail": entry.detail, "compared": entry.compared, "passed": entry.compared and entry.passed}
            for (part, name), entry in self.entries.items()
        ]  # fmt: skip
        return {"passed": self.compares and self.passed, "compared": self.compares, "seconds": self.seconds,
                "failures": list(self.failures()), "entries": entries}  # fmt: skip
