"""Faults of every kind, planted in real processes: each costs its own case, and no part costs another."""

import json
import time
from functools import partial
from pathlib import Path

import pytest
from parts.clock import GUARD

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find each other as plain modules, because they are run from this folder."""
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """Part -> its lines, of one run of all planted parts side by side and one part behind them."""
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        from attempts import Part, Run

        quick = ("raises", "wrong", "killed", "loses its device", "loses its engine", "exits", "broken list")
        patient = partial(Part, seconds=GUARD, case_seconds=GUARD, start_seconds=GUARD)
        faults = [patient(name) for name in quick]
        faults += [patient("hangs", case_seconds=4.0), patient("slow import", most_seconds=4.0)]
        run = Run("planted", "cpu", folder / "lines", folder / "log", time.monotonic() + 2 * GUARD)
        run.stages([faults, [patient("sound")]])
    found: dict[str, list[dict]] = {}
    for text in (folder / "lines").read_text().splitlines():
        line = json.loads(text)
        found.setdefault(line["part"], []).append(line)
    return found


FAULTS = {
    "raises": "ValueError: planted",
    "killed": "RuntimeError: the process ended with status -9",
    "hangs": "TimeoutError: hung: killed after",
    "loses its device": "AcceleratorError: CUDA error: an illegal memory access",
    "loses its engine": "Lost: planted",
    "exits": "RuntimeError: the process ended with status 3",
}


@pytest.mark.parametrize("part", FAULTS)
def test_a_fault_costs_its_own_case_alone(lines, part: str) -> None:
    assert [(line["case"], line["passed"]) for line in lines[part]] == [
        ("before", True), ("planted", False), ("behind", True),
    ]  # fmt: skip
    assert lines[part][1]["error"].startswith(FAULTS[part])


def test_a_number_that_is_off_fails_its_case_and_no_process(lines) -> None:
    before, planted, behind = lines["wrong"]
    assert (before["passed"], planted["passed"], behind["passed"]) == (True, False, True)
    assert planted["entries"][0] | {"value": None} == {
        "name": "off", "value": None, "limit": 1.0, "count": 1, "detail": "planted", "compared": True, "passed": False,
    }  # fmt: skip
    assert planted["entries"][0]["value"] == "nan"


def test_what_a_case_found_before_it_raised_is_kept(lines) -> None:
    assert [entry["name"] for entry in lines["raises"][1]["entries"]] == ["half done"]
    assert any("planted" in text for text in lines["raises"][1]["trace"])


def test_a_slow_import_is_cut_off_and_says_so(lines) -> None:
    (line,) = lines["slow import"]
    assert (line["case"], line["passed"]) == ("start and imports", False)
    assert "out of time" in line["error"]


def test_a_list_of_cases_that_breaks_is_a_line(lines) -> None:
    (line,) = lines["broken list"]
    assert line["error"] == "ValueError: planted"


def test_the_stage_behind_all_these_runs_whole(lines) -> None:
    assert [line["passed"] for line in lines["sound"]] == [True, True, True]


def test_what_is_not_reached_in_time_has_failed(tmp_path: Path) -> None:
    import inside
    from report import Case, Report

    cases = [Case("first", lambda: pytest.fail("must not begin")), Case("second", lambda: None)]
    report = Report("late", tmp_path / "lines")
    assert inside.run(report, iter(cases), tmp_path / "place", 0, time.monotonic() - 1) == 0
    (line,) = map(json.loads, (tmp_path / "lines").read_text().splitlines())
    assert not line["passed"]
    assert line["error"] == "TimeoutError: 2 cases were not reached, from 'first' on"


def test_a_stage_leaves_the_later_ones_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attempts import Part, Run

    untils, begun = [], time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begun)  # nothing takes time
    monkeypatch.setattr(Run, "stage", lambda self, stage, until: untils.append(until - begun))
    stages = [[Part("a", 30.0), Part("b", 50.0)], [Part("c", 20.0)], [Part("d", 10.0)]]
    for seconds in (100.0, 40.0):
        Run("planted", "cpu", tmp_path / "lines", tmp_path / "log", begun + seconds).stages(stages)
    assert untils == pytest.approx([70.0, 90.0, 100.0, 25.0, 35.0, 40.0])  # half of what each would have


def test_the_failures_are_few_short_lines_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from report import Case, Report
    from summary import Summary

    report = Report("part", tmp_path / "lines")
    for number in range(100):
        report.case(number, Case(f"case {number}", lambda: report.number("off", 2.0, 1.0, "x" * 1000)))
    summary = Summary(tmp_path / "lines")
    summary.miss(tmp_path / "lines", ["part", "silent"])
    summary.verdict()
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "FAILED"
    assert "and 71 more" in printed
    assert len(printed) < 12_000
    assert not Summary(tmp_path / "lines").passed
    assert "silent" in Summary(tmp_path / "lines").seconds


def test_of_several_numbers_of_one_name_the_worst_is_told(tmp_path: Path) -> None:
    from report import Case, Report
    from summary import Summary

    report = Report("part", tmp_path / "lines")
    for number, value in enumerate((0.5, float("nan"), 0.7)):
        report.case(number, Case(str(number), lambda value=value: report.number("off", value, 1.0)))
    (entry,) = Summary(tmp_path / "lines").entries.values()
    assert not entry.passed
    assert entry.count == 3


def test_on_a_stand_in_numbers_judge_nothing_and_a_case_that_raises_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from attempts import Part, Run
    from chip import STAND_IN
    from summary import Summary

    lines = tmp_path / "lines"
    run = Run("planted", STAND_IN, lines, tmp_path / "log", time.monotonic() + 60.0)
    run.stage([Part("wrong", 50.0)], run.until)
    summary = Summary(lines, compares=False)
    summary.table()
    summary.verdict()
    printed = capsys.readouterr().out
    assert printed.count("not compared") == 3
    assert printed.splitlines()[-1].startswith("RAN to its end on a stand-in")
    assert "PASSED" not in printed
    document = summary.document()
    assert (document["passed"], document["compared"], document["failures"]) == (False, False, [])
    run.stage([Part("raises", 50.0)], run.until)
    summary = Summary(lines, compares=False)
    summary.verdict()
    assert capsys.readouterr().out.splitlines()[-1] == "FAILED"
    assert list(summary.failures()) == ["raises: planted: ValueError: planted"]
