"""The test files to try for a fault, the likeliest and cheapest first, in pieces that grow."""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests/, whose import graph this reads

from parts.import_graph import ROOT, TESTS, imports_of, reached_by

LEFT_OUT = ("tests/rules/test_source.py", "tests/rules/test_words.py", "tests/sim/test_mutants.py", "tests/planted/")
"""Tests of texts, which any change breaks, and of another list of planted bugs, which knows the texts they replace."""
INTEGRATION = ("bench", "gpu", "kernels/gpu", "sim", "stand_in", "system")
UNKNOWN_COST, OF_ENGINES = 5.0, 40.0
"""CPU seconds of a file that no ledger names, and of one that starts engines or other programs."""
WAITING = 8.0
"""Seconds by the clock that count like one of the processor: engines of tests are children of children."""
PIECES = (20.0, 60.0, 180.0, 400.0)
"""CPU seconds of one pytest, the first and the next ones; each begins by importing what it tests."""


class Order:
    """Costs, and the files that reach a product file."""

    def __init__(self, ledgers: Sequence[Path]) -> None:
        """`ledgers`: files of JSON lines [node id, file, own CPU seconds, children's, seconds by the clock, ...]."""
        self._costs: dict[str, float] = {}
        for ledger in ledgers:
            for row in map(json.loads, ledger.read_text().splitlines()):
                if row[0] not in ("COLLECT", "FAILED"):
                    self._costs[row[1]] = self._costs.get(row[1], 0.0) + row[2] + row[3] + row[4] / WAITING

    def cost(self, test: str) -> float:
        starts_engines = test.startswith(tuple(f"tests/{folder}/" for folder in INTEGRATION))
        return self._costs.get(test, OF_ENGINES if starts_engines else UNKNOWN_COST)

    def files(self, file: str) -> list[str]:
        """Test files whose imports reach a product file, in the order in which they are tried."""
        away = _distances(file)
        far = max(away.values(), default=0) + 1

        def key(test: str) -> tuple[int, int, float]:
            distance = away.get(test, far)
            return _group(test, file, distance), distance, self.cost(test)

        return sorted(_reaching(file), key=key)

    def pieces(self, tests: Sequence[str]) -> Iterator[list[str]]:
        """The files in their order, cut where a piece has cost enough."""
        piece: list[str] = []
        total, number = 0.0, 0
        for test in tests:
            piece.append(test)
            total += self.cost(test)
            if total >= PIECES[min(number, len(PIECES) - 1)]:
                yield piece
                piece, total, number = [], 0.0, number + 1
        if piece:
            yield piece


@cache
def _reach() -> dict[str, frozenset[Path]]:
    """Test file -> what it reaches."""
    tests = (path for path in sorted(TESTS.rglob("test_*.py")) if "node_modules" not in path.parts)
    names = {str(path.relative_to(ROOT)): path for path in tests}
    return {name: frozenset(reached_by(path)) for name, path in names.items() if not name.startswith(LEFT_OUT)}


def _reaching(file: str) -> list[str]:
    return [test for test, reached in _reach().items() if ROOT / file in reached]


def _group(test: str, file: str, distance: int) -> int:
    """Tests of the module itself first, then those that import it, those of its room, of its folder, all others."""
    mirrored, rooms = Path(test).parent.parts[1:], Path(file).parent.parts
    is_of_room = mirrored[: len(rooms)] == rooms
    if is_of_room and (distance == 1 or Path(test).stem == f"test_{Path(file).stem}"):
        return 0
    if distance == 1 or is_of_room:
        return 1 if distance == 1 else 2
    return 3 if mirrored[:1] == rooms[:1] else 4


@cache
def _importers() -> dict[Path, set[Path]]:
    """File -> those that import it or name it."""
    found: dict[Path, set[Path]] = {}
    for path in frozenset().union(*_reach().values()):
        for one in imports_of(path) if path.suffix == ".py" else ():
            found.setdefault(one, set()).add(path)
    return found


def _distances(file: str) -> dict[str, int]:
    """Test file -> the number of imports between it and a product file; sources in C++ are what loads them."""
    path = ROOT / file
    level = {path} if path.suffix == ".py" else set((ROOT / "kernels/cpu").glob("*.py"))
    seen, distance, found = set(level), 0, dict[str, int]()
    while level:
        distance += 1
        level = {one for inner in level for one in _importers().get(inner, ())} - seen
        seen |= level
        found |= {str(one.relative_to(ROOT)): distance for one in level if one.name.startswith("test_")}
    return found
