"""`quire bench worker`: keys, and plans that a real runner accepts; never times."""

import argparse

import pytest

from quire.deploy.bench import worker
from quire.deploy.bench.report.errors import BenchError
from quire.proto.messages.plans import StepPlan
from quire.proto.transport.wire import plan_decoder, unpack
from quire.worker.bench.host_time import Scenario, Script, measure

SMALL = Scenario(rows=6, steps=60, warm_up=3, block_size=4, prompt_len=10)


def plans(scenario: Scenario, count: int) -> list[StepPlan]:
    script, decoder = Script(scenario), plan_decoder()
    return [decoder.decode(*frames) for frames in (script.opening(), *(script.next() for _ in range(count)))]


def test_a_tiny_run_prints_the_agreed_keys(bench) -> None:
    result = bench("worker", "--rows", "4", "--steps", "20", "--prompt-len", "8", "--churn", "0.5", "--seed", "3")
    assert result["host_ms_p50"] > 0
    assert result["host_ms_p99"] >= result["host_ms_p50"]
    assert result["launch_ms_p50"] + result["collect_ms_p50"] <= 2 * result["host_ms_p99"]
    assert result["admits_per_step"] == 0.5
    assert result["config"]["rows"] == 4
    assert result["seed"] == 3


def test_a_runner_accepts_every_plan_and_every_row_draws_in_every_step() -> None:
    measured = measure(SMALL)
    assert len(measured["launch_ms"]) == len(measured["collect_ms"]) == 60
    assert measured["admits"] == 0
    assert measured["appends"] == 60 * 6 / 4


def test_sequences_come_and_go_at_the_rate_asked() -> None:
    measured = measure(Scenario(rows=6, steps=60, warm_up=2, block_size=4, prompt_len=10, churn=1.5))
    assert measured["admits"] == 90


def test_block_boundaries_are_spread_over_the_steps() -> None:
    appends = [
        sum(len(unpack(column, 3)) for column in plan.appends)
        for plan in plans(Scenario(rows=16, block_size=4, prompt_len=8), 40)
    ]
    assert set(appends[1:]) == {4}


def test_a_slot_that_enters_runs_its_whole_prompt_behind_the_decoding_ones() -> None:
    steps = plans(Scenario(rows=4, block_size=4, prompt_len=9, churn=1.0), 3)
    for number, plan in enumerate(steps[1:]):
        assert unpack(plan.num_tokens).tolist() == [1, 1, 1, 9]
        assert unpack(plan.releases).tolist() == [number]
        assert unpack(plan.slots)[-1] == number


@pytest.mark.parametrize("change", [{"rows": 0}, {"churn": 7.0}, {"churn": -1.0}])
def test_impossible_scenarios_are_refused_by_name(change) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Scenario(**{"rows": 6, **change})


@pytest.mark.parametrize(("option", "value"), [("--rows", "0"), ("--churn", "9999"), ("--steps", "-5")])
def test_a_scenario_that_makes_no_sense_is_refused_by_its_flag(option, value) -> None:
    parser = argparse.ArgumentParser()
    worker.add_arguments(parser)
    arguments = parser.parse_args([f"{option}={value}"])
    arguments.seed = 0
    with pytest.raises(BenchError, match=option):
        worker.run(arguments)
