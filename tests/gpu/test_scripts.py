"""The GPU scripts, as far as a machine without one goes: they refuse, judge rightly, and their parts run on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find each other as plain modules, because they are run from this folder."""
    monkeypatch.syspath_prepend(str(HERE))


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250, check=False)


@pytest.mark.parametrize("script", ["check.py", "bench.py"])
def test_without_a_gpu_nothing_is_claimed(script, tmp_path: Path) -> None:
    done = run(script, "--out", str(tmp_path / "out.json"))
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_layers_linears_attention_sampling_and_group_pass_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    parts = ("layers", "linears", "attention", "encoder", "sampling", "group")
    done = run("check.py", "--device", "cpu", "--parts", *parts, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    assert document["passed"]
    assert set(document["seconds"]) == set(parts)
    assert all(entry["passed"] for entry in document["entries"])


def test_an_engine_is_measured_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run("bench.py", "--device", "cpu", "--parts", "engine", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text())
    assert document["engine"]["throughput_20/20"]["output_tokens"] == 8 * 20
    assert document["engine"]["step_ms_4_at_32"] > 0
    # what was cut off is a rate over what came by then, and says so
    assert not document["engine"]["throughput_32/400"]["complete"]
    assert document["engine"]["throughput_16/8"]["complete"]
    assert {"kernels", "transformers"} <= set(document["not_measured"])


def test_one_failed_number_fails_the_run() -> None:
    from report import Report

    report = Report()
    report.part("some", 10.0, lambda: report.number("off", 0.5, 1.0))
    assert report.passed
    report.part("some", 10.0, lambda: report.number("off", float("nan"), 1.0))
    report.part("some", 10.0, lambda: report.number("off", 0.7, 1.0))
    assert not report.passed


def test_what_was_not_reached_in_time_has_failed() -> None:
    from report import Report

    report = Report()
    report.part("late", -1.0, lambda: pytest.fail("must not begin"))
    assert not report.passed


def test_a_part_that_raises_fails_and_the_next_one_runs() -> None:
    from report import Report

    def broken() -> None:
        raise ValueError("broken")

    report = Report()
    report.part("one", 10.0, broken)
    report.part("two", 10.0, lambda: report.holds("reached", True))
    assert not report.passed
    assert set(report.seconds) == {"one", "two"}


def test_a_process_that_found_nothing_has_failed() -> None:
    from report import Report

    found, report = Report(), Report()
    found.part("one", 10.0, lambda: found.number("small", 0.5, 1.0))
    report.take("one", json.loads(json.dumps(found.document())), "")
    assert report.passed
    assert report.document() == found.document()
    report.take("two", None, "exit status -11")
    assert not report.passed


def test_equality_is_of_bits_and_nan_equals_nan() -> None:
    from report import Report, bits, row_error

    nan, x = torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0])
    assert torch.equal(bits(nan), bits(nan.clone()))
    report = Report()
    report.part("some", 10.0, lambda: report.equal("same", nan, nan.clone()))
    assert report.passed
    report.part("some", 10.0, lambda: report.equal("signs of zero", torch.tensor([0.0]), torch.tensor([-0.0])))
    assert not report.passed
    assert row_error(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[3.0, 4.0], [2.0, 0.0]])) == 0.5
    assert not row_error(nan[None], x[None]) <= 1e9


def test_the_bench_compiles_operations_that_exist() -> None:
    import bench

    from quire.kernels.bench.__main__ import cases
    from quire.kernels.bench.shapes import CUDA

    known = {case.operation for case in cases(CUDA, "cuda")}
    assert {operation for group in bench.TO_COMPILE for operation in group} <= known


def test_all_that_a_run_may_take_fits_its_ten_minutes() -> None:
    import bench
    import check
    import workloads

    loads = sum(load.seconds for load in (*workloads.H200.throughput, workloads.H200.comparison))
    budgets = workloads.COMPILE_SECONDS + workloads.KERNEL_SECONDS + workloads.START_SECONDS
    assert budgets + workloads.LATENCY_SECONDS + loads + workloads.PEER_SECONDS <= bench.RUN_SECONDS + 5
    assert sum(max(stage.values()) + check.GRACE_SECONDS for stage in check.STAGES) <= 570


def test_the_longest_stretch_of_full_steps_is_found() -> None:
    from engine_rows import longest_stretch

    steps = {1.0: 2, 2.0: 4, 3.0: 4, 4.0: 3, 5.0: 4, 6.0: 4, 7.0: 4, 8.0: 1}
    assert longest_stretch(steps, 4) == [5.0, 6.0, 7.0]
    assert longest_stretch({}, 4) == []


def test_the_floor_of_llama_8b_is_that_of_its_bytes() -> None:
    from engine_rows import floors
    from workloads import H200

    weight_bytes = 2 * 8_030_261_248
    step, prompt = floors(H200, weight_bytes, 4.3e12, 790e12, 2)
    assert step(1, 512) == pytest.approx(3.51, abs=0.01)
    assert step(128, 2048) == pytest.approx(11.5, abs=0.1)
    assert step(256, 2048) == pytest.approx(20.8, abs=0.2)
    assert prompt(2048) == pytest.approx(38.0, rel=0.05)
    assert prompt(8192) == pytest.approx(174.0, rel=0.05)
