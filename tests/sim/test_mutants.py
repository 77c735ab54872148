"""The simulator is trusted because it finds planted bugs."""

import pytest
from image_mutants import IMAGE_MUTANTS
from mutants import MUTANTS
from mutation import Mutant, StaleMutant, hunt, plant

NUM_SEEDS = 50
"""The named seed comes first; others follow, because every change of the scheduler changes every run."""


@pytest.mark.sampled(24)
@pytest.mark.parametrize("mutant", MUTANTS + IMAGE_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_planted_bug_is_found(mutant):
    verdict = hunt(mutant, range(mutant.seed, mutant.seed + NUM_SEEDS))
    assert verdict.found, f"{mutant.name}: {verdict.last_line}"


def test_where_nothing_is_planted_nothing_is_found():
    """What is found is the bug, then, and no fault of the process that hunts it."""
    none = Mutant("none", 0, "state/in_flight.py", "return min(self._acks)", "return min(self._acks)  # as it was")
    verdict = hunt(none, range(2), num_events=1000)
    assert not verdict.found
    assert verdict.last_line.startswith("2 of 2 seeds pass")


def test_a_mutant_whose_code_is_gone_fails_loudly(tmp_path):
    gone = Mutant("gone", 0, "core/core.py", "this text is nowhere", "")
    with pytest.raises(StaleMutant, match=r"occurs 0 times in scheduler/core/core\.py"):
        plant(gone, tmp_path / "scheduler")
