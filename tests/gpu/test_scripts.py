"""The GPU scripts, as far as a machine without one goes: they refuse, judge rightly, and their parts run on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
PLANTED = "min_tokens, stop_token_ids"
"""The option whose launch raises once."""


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts find each other as plain modules, because they are run from this folder."""
    monkeypatch.syspath_prepend(str(HERE))


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, str(HERE / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)


def lines(path: Path) -> list[dict]:
    return [json.loads(text) for text in path.read_text().splitlines()]


@pytest.mark.parametrize("script", ["check.py", pytest.param("bench.py", marks=pytest.mark.thorough)])
def test_without_a_gpu_nothing_is_claimed(script, tmp_path: Path) -> None:
    done = run(script, OUT=str(tmp_path))
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "least"),
    [
        (("layers", "group"), 20),
        pytest.param(("linears", "decode", "prefill", "encoder", "sampling"), 100, marks=pytest.mark.thorough),
    ],
)
def test_kernels_and_group_pass_on_the_cpu(tmp_path: Path, parts: tuple[str, ...], least: int) -> None:
    done = run("check.py", "--device", "cpu", "--parts", *parts, OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    document = json.loads((tmp_path / "check.json").read_text())
    assert document["passed"]
    assert set(document["seconds"]) == {"facts", *parts}
    assert all(entry["passed"] for entry in document["entries"])
    found = lines(tmp_path / "check.jsonl")
    assert len(found) > least
    assert {line["part"] for line in found} == {"facts", *parts}
    assert done.stdout.splitlines()[-1] == "PASSED"


@pytest.mark.thorough
def test_the_runner_small_models_and_a_whole_tiny_engine_pass_on_the_cpu(tmp_path: Path) -> None:
    parts = ("tiny", "runner", "forms", "vision", "families", "experts", "heads")
    done = run("check.py", "--device", "cpu", "--parts", *parts, OUT=str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    names = {line["case"] for line in lines(tmp_path / "check.jsonl")}
    wanted = {
        "tiny, eager",
        "tiny, graphs",
        "launch never waits, float32: grammar",
        "grammars ahead of results, float32",
        "gptq_order: weights of the tool",
        "llama-q8_0: near the references",
        "qwen2.5-vl, float32: items at once",
        "qwen3-vl: tokens of the references, graphs",
        "gemma 4: fewer keys, which are values, and a bias, float32: graphs",
        "experts of mixtral, float32: graphs equal eager steps",
        "backend, Llama, float32: eager",
        "BertForSequenceClassification, float32, graphs: prompts at once",
    }
    assert wanted <= names


def test_a_launch_that_raises_costs_its_own_case_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import chip
    import runner_checks
    from options import OPTIONS
    from report import Report

    from quire.worker.sampling import sampler

    beside = {
        name: params for name, params in OPTIONS.items() if name in ("penalties", "bad_words", PLANTED, "logprobs")
    }
    monkeypatch.setattr(runner_checks, "OPTIONS", beside)
    report, banned = Report("runner", tmp_path / "lines"), sampler._banned

    def refuse(*arguments) -> None:
        monkeypatch.setattr(sampler, "_banned", banned)  # once
        raise ValueError("planted")

    failures = {}
    for number, case in enumerate(runner_checks.runner(report, chip.ask("cpu"), tmp_path, small=True, few=True)):
        if case.name.startswith("launch never waits"):
            if PLANTED in case.name:
                monkeypatch.setattr(sampler, "_banned", refuse)
            failures[case.name.split(": ")[1]] = report.case(number, case)
    assert list(failures) == list(beside)
    assert [(name, str(error)) for name, error in failures.items() if error] == [(PLANTED, "planted")]


@pytest.mark.thorough
def test_an_engine_is_measured_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    parts = ("ceilings", "tower", "latencies", "throughput", "experts", "cameras")
    done = run("bench.py", "--device", "cpu", "--parts", *parts, "--out", str(out))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    document = json.loads(out.read_text())
    engine = document["engine"]
    assert engine["throughput_20/20"]["output_tokens"] == 8 * 20
    assert engine["step_ms_4_at_32"] > 0
    assert engine["itl_ms_per_context_token"] == document["ratios"]["itl_ms_per_context_token"]["measured"]
    assert document["ratios"]["ttft_ms_64"]["share_of_limit"] > 0
    # what was cut off is a rate over what came by then, and says so
    assert not engine["throughput_32/400"]["complete"]
    assert engine["throughput_16/8"]["complete"]
    assert engine["throughput_20/20"]["idle_share"] < 1
    assert document["cameras"]["auto: 2 cameras"]["completed"] == 4
    assert document["tower"]["files_3"]["flops"] == document["tower"]["tower_1"]["flops"] * 3
    assert [line["part"] for line in lines(out.with_suffix(".jsonl"))][:3] == ["facts", "facts", "ceilings"]


def test_equality_is_of_bits_and_nan_equals_nan() -> None:
    from tensors import bits, differing, row_error

    nan, x = torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0])
    assert torch.equal(bits(nan), bits(nan.clone()))
    assert differing(nan, nan.clone()) == 0
    assert differing(torch.tensor([0.0]), torch.tensor([-0.0])) == 1
    assert differing(x, x[:1]) == float("inf")
    assert row_error(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[3.0, 4.0], [2.0, 0.0]])) == 0.5
    assert not row_error(nan[None], x[None]) <= 1e9


def test_the_bench_compiles_operations_that_exist() -> None:
    import bench_parts

    from quire.kernels.bench.__main__ import cases
    from quire.kernels.bench.shapes import CUDA

    known = {case.operation for case in cases(CUDA, "cuda")}
    assert {operation for group in bench_parts.TO_COMPILE for operation in group} <= known


@pytest.mark.parametrize("name", ["check", "bench"])
def test_what_is_kept_for_the_parts_fits_the_run(name: str) -> None:
    import importlib

    import script

    chosen = importlib.import_module(name).SCRIPT
    kept = sum(max(part.seconds for part in stage) for stage in chosen.stages)
    assert script.FACTS_SECONDS + kept <= chosen.seconds < 590


def test_the_first_import_of_a_fresh_machine_may_take_as_long_as_it_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    import check
    import chip
    import script

    left, begun = [], time.monotonic()

    def stage(run: script.Run, stage: script.Stage, until: float) -> None:
        left.extend((stage[0], until - time.monotonic()))
        raise SystemExit

    monkeypatch.setattr(script.Run, "stage", stage)
    monkeypatch.setattr(script.links, "provide", lambda: None)  # the paths of this process are other tests', too
    monkeypatch.setattr(script.wheels, "provide", lambda: None)
    monkeypatch.setattr(chip, "on_cpu", lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: begun)  # nothing takes time
    monkeypatch.setattr(sys, "argv", ["check.py", "--device", "cpu", "--out", str(tmp_path / "check.json")])
    with pytest.raises(SystemExit):
        check.SCRIPT.main()
    facts, seconds = left
    assert facts.start_seconds >= 60
    assert seconds == pytest.approx(facts.start_seconds + facts.seconds)


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


def test_the_parts_run_their_cases_in_the_same_order_each_time(tmp_path: Path) -> None:
    """A part that starts again counts its cases from the beginning."""
    import check_parts
    from report import Given, Report

    for part in ("layers", "linears", "decode", "prefill", "encoder", "sampling"):
        report, given = Report(part, tmp_path / "lines"), Given("cpu", tmp_path, 0)
        first, second = ([case.name for case in check_parts.cases(part, report, given)] for _ in range(2))
        assert first == second
        assert len(set(first)) == len(first)
