"""Tests of interpreted kernels are taken from the record only while all that they run and compare with is as it was."""

from pathlib import Path

import pytest
from parts import unchanged
from parts.import_graph import ROOT

NO_KERNELS = ("aot", "tuning")
"""Folders beside the kernels that have tests of their own, which are never on record."""


@pytest.fixture(scope="module")
def told():
    """`told(test file, changed=None)`: its digest as if that file were another, and the files that it was made of."""

    def ask(test: Path, changed: Path | None = None) -> tuple[str, set[Path]]:
        read, real = set(), Path.read_bytes

        def noted(path: Path) -> bytes:
            read.add(path)
            return real(path) + (b"#" if path == changed else b"")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "read_bytes", noted)
            return unchanged.digest(test), read

    return ask


def test_every_kernel_is_among_what_some_test_file_is_on_record_with(told):
    found = set().union(*(told(test)[1] for test in unchanged.test_files()))
    folder = ROOT / "kernels" / "gpu"
    kernels = {path for path in folder.rglob("*.py") if "@triton.jit" in path.read_text()}
    assert len(kernels) > 40
    missing = {path for path in kernels - found if path.relative_to(folder).parts[0] not in NO_KERNELS}
    assert missing == set()


@pytest.mark.parametrize(
    ("test", "changed"),
    [
        ("attention/test_decode.py", "tests/kernels/gpu/attention/test_decode.py"),
        ("attention/test_decode.py", "kernels/gpu/attention/decode.py"),
        ("attention/test_decode.py", "kernels/gpu/attention/softmax.py"),  # what the kernel calls
        ("sampling/test_sample.py", "kernels/gpu/sampling/top_k_top_p_search.py"),  # by a form's name
        ("quantized/test_linear_f8.py", "kernels/linear/linear_f8.py"),  # the reference
        ("experts/test_coded_words.py", "kernels/gpu/quantized/word_sums.py"),
        ("linear/test_norm.py", "tests/interpreted.py"),
        ("linear/test_norm.py", "tests/kernels/gpu/conftest.py"),
    ],
)
def test_a_change_of_what_a_test_file_reaches_takes_it_off_the_record(told, test, changed):
    file = unchanged.FOLDER / test
    plain, read = told(file)
    assert ROOT / changed in read
    assert told(file, ROOT / changed)[0] != plain
    assert told(file, ROOT / "worker" / "loop.py")[0] == plain
