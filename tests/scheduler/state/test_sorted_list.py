"""The sorted list behind the queue."""

import random

import pytest

from quire.scheduler.state import sorted_list
from quire.scheduler.state.sorted_list import SortedList


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_sorted_list_whatever_is_added_and_removed(seed, monkeypatch):
    monkeypatch.setattr(sorted_list, "MAX_PIECE", 8)
    rng = random.Random(seed)
    kept, expected = SortedList(), {}
    for _ in range(2000):
        key = rng.randrange(4), rng.randrange(200)
        if key in expected:
            kept.remove(key)
            del expected[key]
        else:
            kept.add(key, f"output {key}")
            expected[key] = f"output {key}"
        keys = sorted(expected)
        assert list(kept) == [expected[key] for key in keys]
        assert max(map(len, kept._pieces), default=0) <= 8
        for probe in (key, (key[0],), (key[0] + 1,)):
            assert kept.num_before(probe) == sum(one < probe for one in keys)
            following = [expected[one] for one in keys if one >= probe]
            for skip in (0, 1, 9, len(following)):
                assert kept.at_least(probe, skip) == (following[skip] if skip < len(following) else None)


def test_what_is_not_there_cannot_be_removed():
    kept = SortedList()
    with pytest.raises(KeyError):
        kept.remove((1, 2))
    kept.add((1, 2), "output")
    for key in ((0, 2), (1, 3), (1,)):
        with pytest.raises(KeyError):
            kept.remove(key)
    assert list(kept) == ["output"]
