"""`quire bench scheduler`: keys, determinism and sizes; never times."""

import argparse

import msgspec
import pytest

from quire.deploy.bench import scheduler
from quire.deploy.bench.report.errors import BenchError
from quire.scheduler.bench import Drive, Scenario, steady, submit_to_plan

KEYS = {
    "step_ms_p50",
    "step_ms_p999",
    "handle_ms_p50",
    "plan_bytes",
    "submit_to_plan_ms_p50",
    "machine",
    "commit",
    "seed",
    "config",
}
SMALL = Scenario(running=16, waiting=40, steps=60, probes=3, prompt_len=20, output_len=32)


@pytest.fixture(autouse=True)
def collector_as_before():
    """The bench switches the collector off, as the production loop does."""
    import gc

    yield
    gc.enable()


def test_a_tiny_run_prints_the_agreed_keys(bench) -> None:
    result = bench(
        "scheduler",
        "--running",
        "8",
        "--waiting",
        "20",
        "--steps",
        "30",
        "--probes",
        "3",
        "--prompt-len",
        "24",
        "--output-len",
        "16",
        "--seed",
        "5",
    )
    assert set(result) >= KEYS
    assert result["config"]["running"] == 8
    assert result["seed"] == 5
    assert all(result[name] > 0 for name in KEYS if name.endswith(("_ms_p50", "_p999")))


def test_the_running_set_stays_full_while_outputs_end_and_others_enter() -> None:
    measured = steady(SMALL)
    assert measured["rows_per_plan"] == pytest.approx(16, abs=1.5)
    assert measured["finished"] == pytest.approx(60 * 16 / 32, abs=6)
    assert len(measured["step_ms"]) == 60


def test_every_prompt_may_have_an_image_of_its_own() -> None:
    drive = Drive(msgspec.structs.replace(SMALL, image_len=8))
    plans = [drive.read(plan) for plan in (drive.step()[3] for _ in range(50)) if plan is not None]
    num_encodes = sum(len(plan.encodes) for plan in plans)
    assert num_encodes == sum(len(plan.admits) for plan in plans) > 0


def test_the_queue_stays_as_long_as_asked() -> None:
    drive = Drive(SMALL)
    for _ in range(50):
        drive.step()
    assert drive.num_finished > 0
    # each end starts the oldest waiting request and queues a new one; two plans may be on their way
    assert drive.core.num_live == SMALL.running + SMALL.waiting


def test_equal_seeds_make_equal_plans() -> None:
    assert steady(SMALL)["plan_bytes"] == steady(SMALL)["plan_bytes"]


def test_a_steady_plan_of_256_rows_is_at_most_four_kilobytes() -> None:
    measured = steady(Scenario(running=256, waiting=16, steps=40, prompt_len=16, output_len=512))
    assert sorted(measured["plan_bytes"])[len(measured["plan_bytes"]) // 2] <= 4096


def test_every_probe_finds_its_plan() -> None:
    assert len(submit_to_plan(SMALL)) == SMALL.probes


def test_impossible_scenarios_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="running: must be at least 1"):
        Scenario(running=0)
    with pytest.raises(ValueError, match="image_len: must be at least 0 and less than prompt_len, got 20"):
        Scenario(prompt_len=20, image_len=20)


@pytest.mark.parametrize(("option", "value"), [("--running", "0"), ("--waiting", "-1"), ("--steps", "-5")])
def test_a_scenario_that_makes_no_sense_is_refused_by_its_flag(option, value):
    parser = argparse.ArgumentParser()
    scheduler.add_arguments(parser)
    arguments = parser.parse_args([f"{option}={value}"])
    arguments.seed = 0
    with pytest.raises(BenchError, match=option):
        scheduler.run(arguments)
