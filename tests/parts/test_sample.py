"""Cases that are drawn: as many as asked for, always the same, and few that meet every pair of values."""

import itertools

from parts.sample import drawn

CASES = {str(values): list(zip("abc", values, strict=True)) for values in itertools.product(range(3), repeat=3)}


def pairs(names):
    return {pair for name in names for pair in itertools.combinations(CASES[name], 2)}


def test_a_third_of_a_product_meets_nearly_all_pairs():
    kept = drawn(CASES, 9, seed=0)
    assert len(kept) == 9
    assert len(pairs(kept)) >= 24  # of 27
    assert pairs(drawn(CASES, 15, seed=0)) == pairs(CASES)


def test_the_seed_alone_decides_and_others_draw_others():
    assert drawn(CASES, 5, seed=1) == drawn(dict(reversed(CASES.items())), 5, seed=1)
    assert len({frozenset(drawn(CASES, 5, seed)) for seed in range(8)}) > 1


def test_no_more_are_drawn_than_there_are_and_those_without_values_too():
    assert drawn(CASES, 99, seed=0) == set(CASES)
    assert len(drawn({name: [] for name in "abcdef"}, 4, seed=0)) == 4
