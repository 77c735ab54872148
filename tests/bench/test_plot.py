"""`--plot` refuses what it cannot do, in words."""

import sys
from pathlib import Path

import pytest

from quire.deploy.bench.report import plot
from quire.deploy.bench.report.errors import BenchError


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BenchError, match=r"install quire\[plot\]"):
        plot.require(str(tmp_path / "x.png"))


def test_a_run_without_samples_draws_nothing(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no series"):
        plot.write(str(tmp_path / "x.png"), "empty", {"a": []})
    assert not (tmp_path / "x.png").exists()


def test_an_unknown_format_is_an_error_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="cannot write"):
        plot.write(str(tmp_path / "x.nonsense"), "t", {"a": [1.0, 2.0]})
