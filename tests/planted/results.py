"""The table of results: rows of JSON as they were found, and a page made of them."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from draw import recorded
from fault import Fault

RESULTS = Path(__file__).parent / "results.jsonl"
PAGE = Path(__file__).parent / "results.md"


def rows(path: Path = RESULTS) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_rows(path: Path = RESULTS) -> dict[tuple[str, str], dict]:
    """(fault, commit of the tests) -> its newest row."""
    return {(row["fault"], row["tests_from"]): row for row in rows(path)}


def is_missed(row: dict | None) -> bool:
    """`make test` was tried, and no test of it found the fault."""
    return row is not None and not (row["found_by"] and row["scope"] == "quick")


def is_done(row: dict | None, last_scope: str) -> bool:
    """Nothing is left to try up to this scope."""
    return row is not None and bool(row["found_by"] or last_scope == "quick" or row["scope"] == "thorough")


def write_page(faults: Sequence[Fault], revision: str, path: Path = RESULTS) -> None:
    """`revision`: of the old tests, whose names are looked up; empty: nothing is said of them."""
    newest = last_rows(path)
    old = {fault: row for (fault, revision), row in newest.items() if revision}
    here = {fault: row for (fault, revision), row in newest.items() if not revision}
    lines = [
        "# Faults planted one by one, and the first test that finds each",
        "",
        "Written by `python tests/planted --page` from `results.jsonl`; the faults are in `drawn.jsonl`, `by_hand.py`",
        "and `by_hand_of_devices.py`. Tried are the test files that reach a fault, the nearest and cheapest first.",
        "",
        *_counts(faults, here),
        *(_beside_old(faults, here, old, revision) if revision else ()),
        "",
        "| fault | place | what | found by | in |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(fault, here.get(fault.id), old.get(fault.id)) for fault in faults]
    skipped = [row for row in recorded() if row.get("skipped")]
    lines += ["", "## Drawn, but no faults", "", "| draw | place | what | why it is none |", "|---|---|---|---|"]
    lines += [f"| {row['id']} | `{row['file']}:{row['line']}` | {row['what']} | {row['skipped']} |" for row in skipped]
    PAGE.write_text("\n".join(lines) + "\n")


def _counts(faults: Sequence[Fault], here: Mapping[str, dict]) -> list[str]:
    lines = ["| | faults | `make test` | only `make test-all` | neither |", "|---|---|---|---|---|"]
    for room in (*sorted({fault.room for fault in faults}), "all"):
        of_room = [here[fault.id] for fault in faults if room in (fault.room, "all") and fault.id in here]
        quick = sum(not is_missed(row) for row in of_room)
        found = sum(bool(row["found_by"]) for row in of_room)
        lines.append(f"| {room} | {len(of_room)} | {quick} | {found - quick} | {len(of_room) - found} |")
    return lines


def _beside_old(faults: Sequence[Fault], here: Mapping[str, dict], old: Mapping[str, dict], revision: str) -> list[str]:
    """What the tests of another commit find: of a test that is there, too, what it finds here; else what was tried."""
    found = {fault.id: here[fault.id]["found_by"] for fault in faults if here.get(fault.id, {}).get("found_by")}
    names = {fault: test.partition("[")[0].rpartition("::")[2] for fault, test in found.items()}
    there = {fault for fault, name in names.items() if _is_at(name, revision)}
    tried = [fault for fault, row in old.items() if fault not in there and row["found_by"]]
    missed = [fault for fault, row in old.items() if fault not in there and not row["found_by"]]
    lost = [fault for fault in tried if fault not in found]
    untried = [fault.id for fault in faults if fault.id not in there and fault.id not in old]
    return [
        "",
        f"At {revision}:",
        "",
        f"* found by a test of the same name: {len(there)}",
        f"* by another one: {', '.join(sorted(tried)) or 'none'}",
        f"* by none: {', '.join(sorted(missed)) or 'none'}",
        f"* found there and not here: {', '.join(sorted(lost)) or 'none'}",
        f"* not tried: {len(untried)}",
    ]


def _is_at(name: str, revision: str) -> bool:
    """A test function of this name is among those of the commit."""
    command = ["git", "grep", "-q", "-F", f"def {name}(", revision, "--", ":/tests"]
    return bool(name) and subprocess.run(command, cwd=PAGE.parent, check=False).returncode == 0


def _line(fault: Fault, here: dict | None, old: dict | None) -> str:
    def told(row: dict | None) -> str:
        if row is None:
            return ""
        how = "" if row["how"] in ("failed", "") else f" ({row['how']})"
        return f"`{row['found_by'].removeprefix('tests/')}`{how}" if row["found_by"] else f"no test{how}"

    found = told(here) + (f"; old tests: {told(old)}" if old is not None else "")
    scope = here["scope"] if here is not None and here["found_by"] else ""
    what = fault.what if fault.id.startswith("h") else f"{fault.what}: {_changed(fault)}"
    return f"| {fault.id} | `{fault.file}:{fault.line}` | {what} | {found} | {scope} |".replace("\n", " ")


def _changed(fault: Fault) -> str:
    """What stands there, cut short, in a cell of a table."""
    text = " ".join(fault.new.split()) or f"without {' '.join(fault.old.split())}"
    return "`" + text[:70].replace("|", "\\|").replace("`", "'") + ("…`" if len(text) > 70 else "`")
