"""Cases that stand for all of a parametrized test in `make test`: few that meet each pair of its values.

A function marked `sampled(n)` runs n of its cases there, and all of them in `make test-all`.
"""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable

import pytest

Value = tuple[str, int]
"""Name of an argument, and the place of its value in the list of its values."""


def mark_others_thorough(items: Iterable[pytest.Item], seed: int) -> None:
    """Mark the cases of sampled functions that `make test` leaves out."""
    cases: dict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            cases[item.parent.nodeid, item.originalname].append(item)
    for alike in cases.values():
        (count,) = alike[0].get_closest_marker("sampled").args
        kept = drawn({item.nodeid: values_of(item) for item in alike}, count, seed)
        for item in alike:
            if item.nodeid not in kept:
                item.add_marker(pytest.mark.thorough)


def values_of(item: pytest.Function) -> list[Value]:
    return sorted(item.callspec.indices.items()) if hasattr(item, "callspec") else []


def drawn(cases: dict[str, list[Value]], count: int, seed: int) -> set[str]:
    """Names of `count` cases: each next one meets most pairs of values that none before met; the seed breaks ties."""
    order = sorted(cases, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    meets = {name: set(itertools.combinations_with_replacement(cases[name], 2)) for name in order}
    kept: set[str] = set()
    while len(kept) < min(count, len(cases)):
        best = max((name for name in order if name not in kept), key=lambda name: len(meets[name]))
        kept.add(best)
        new = meets[best]
        if new:
            meets = {name: pairs - new for name, pairs in meets.items()}
        else:  # all are met: the order is as good as any
            kept.update(itertools.islice((name for name in order if name not in kept), count - len(kept)))
    return kept
