"""The drawn faults: a fixed seed spreads them over the lines of the product, and every kind counts the same in a file.

A stratum is an equal share of a folder's lines. It has a long list of candidates, in an order that the seed gives, of
which the first that is a fault is planted: the record says which are none, and why.
"""

import ast
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from fault import Fault
from sites import Site, sites

SEED = 32
STRATA = {"proto": 7, "frontend": 29, "scheduler": 9, "worker": 25, "kernels": 19, "deploy": 11}
"""Some are 1 for 900 lines; the smallest folders have one or two more."""
LEFT_OUT = (
    "proto/generated/",
    "deploy/training/",
    "deploy/package/",
    "deploy/bench/report/",  # what benches print and plot
    "kernels/bench/",
    "kernels/gpu/tuning/",  # a chip's times, which decide what is quick
    "worker/bench/",
)
DRAWN = Path(__file__).parent / "drawn.jsonl"


def product_files(root: Path, folder: str) -> list[tuple[str, int]]:
    """(path, lines) of the modules of a folder that faults are drawn from."""
    names = sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.py"))
    names = [name for name in names if not name.startswith(LEFT_OUT)]
    return [(name, (root / name).read_text().count("\n")) for name in names]


def candidates(root: Path, folder: str, number: int) -> Iterator[Fault]:
    """What may be planted for a stratum, all of one file, one of each kind before a kind's second."""
    files = product_files(root, folder)
    draw = random.Random(f"{SEED} {folder} {number}")
    place = (number + draw.random()) / STRATA[folder] * sum(lines for _, lines in files)
    ends = itertools.accumulate(lines for _, lines in files)
    name = next(name for (name, _), end in zip(files, ends, strict=True) if place < end)
    source = (root / name).read_text()
    by_kind: dict[str, list[Site]] = {}
    for site in sites(source):
        by_kind.setdefault(site.kind, []).append(site)
    kinds = [draw.sample(by_kind[kind], len(by_kind[kind])) for kind in draw.sample(sorted(by_kind), len(by_kind))]
    places = [of_kind[turn] for turn in range(max(map(len, kinds))) for of_kind in kinds if turn < len(of_kind)]
    for letter, site in enumerate(places):
        yield _fault(f"{folder[0]}{number:02}-{letter}", name, source, site)


def _fault(identity: str, name: str, source: str, site: Site) -> Fault:
    """The fault in whole lines, so that it stays where it is when lines above it change."""
    start = source.rfind("\n", 0, site.start) + 1
    end = source.find("\n", site.end)
    new = source[start : site.start] + site.text + source[site.end : end]
    if not new.strip():  # a field alone on its line leaves none
        new, end = "", end + 1
    ast.parse(source[:start] + new + source[end:])
    return Fault(identity, name, source[start:end], new, site.kind, line=source.count("\n", 0, start) + 1)


def recorded() -> list[dict]:
    """The record's rows: a fault's fields, and `skipped` with a reason where it is none."""
    return [json.loads(line) for line in DRAWN.read_text().splitlines()] if DRAWN.exists() else []


def drawn() -> list[Fault]:
    rows = [row for row in recorded() if not row.pop("skipped", "")]
    return [Fault(**row) for row in rows]


def draw_all(root: Path) -> Iterator[Fault]:
    """Of each stratum the first candidate that the record does not pass by."""
    passed_by = {(row["file"], row["old"], row["new"]) for row in recorded() if row.get("skipped")}
    for folder, count in STRATA.items():
        for number in range(count):
            yield next(one for one in candidates(root, folder, number) if (one.file, one.old, one.new) not in passed_by)
