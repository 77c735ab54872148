"""The arithmetic and the form of a report."""

import json

import pytest

from quire.deploy.bench.report.report import Outcome, commit, machine, percentile, percentiles, report


def test_percentiles_interpolate_between_neighbours() -> None:
    samples = [4.0, 1.0, 3.0, 2.0, 5.0]
    assert percentile(samples, 50) == 3.0
    assert percentile(samples, 0) == 1.0
    assert percentile(samples, 100) == 5.0
    assert percentile(samples, 90) == pytest.approx(4.6)


def test_a_percentile_of_nothing_is_none_and_not_zero() -> None:
    assert percentile([], 50) is None


def test_percentile_names_carry_the_decimal_without_its_point() -> None:
    assert list(percentiles("step_ms", [1.0], (50, 99, 99.9))) == ["step_ms_p50", "step_ms_p99", "step_ms_p999"]


def test_the_machine_is_described() -> None:
    here = machine()
    assert here["cpu"]
    assert int(str(here["cores"])) >= 1
    assert int(str(here["memory_bytes"])) > 1 << 20


def test_the_commit_is_one_word() -> None:
    assert commit().strip("+").isalnum()


def test_the_object_is_exactly_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome({"ms": 1.25, "by": {"a": 1}, "none": None}, {"n": 3}, 7)
    report("x", outcome, before=machine(), as_json=True)
    *table, last = capsys.readouterr().out.splitlines()
    document = json.loads(last)
    assert document["ms"] == 1.25
    assert document["by"] == {"a": 1}
    assert document["none"] is None
    assert document["seed"] == 7
    assert document["config"] == {"n": 3}
    assert {"bench", "machine", "commit"} <= set(document)
    assert any("by.a" in line for line in table)
    assert not any(line.startswith("{") for line in table)


def test_without_json_there_is_only_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    report("x", Outcome({"ms": 1.25}, {}), before=machine(), as_json=False)
    assert "{" not in capsys.readouterr().out
