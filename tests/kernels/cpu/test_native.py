"""How the compiled library is found and what it shares with torch."""

from pathlib import Path

import pytest

from quire.kernels.cpu import native


def test_the_best_set_that_this_processor_runs_is_chosen_or_what_is_faster_than_its_pairs():
    chosen, best = native.instruction_set(), native.runnable_sets()[-1]
    assert chosen == best or (chosen, best) == ("avx512", "avx512_bf16")
    assert native.runnable_sets() == native.INSTRUCTION_SETS[: len(native.runnable_sets())]
    assert native.native() is native.load(native.instruction_set())


def test_a_library_that_was_not_compiled_is_named_with_the_remedy():
    with pytest.raises(native.NativeLibraryMissingError, match=r"native_abacus.*GCC 12"):
        native.load("abacus")


def test_the_library_and_torch_share_one_pool_of_threads():
    native.native()
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line}
    assert len(mapped) == 1, mapped
