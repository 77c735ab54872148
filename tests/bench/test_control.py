"""`quire bench control`: nothing lost through real processes, and the arithmetic of its figures."""

import argparse

import pytest

from quire.deploy.__main__ import main
from quire.deploy.bench.load.control_outcome import OPTIONS, busy_seconds, check_delivery, outcome
from quire.deploy.bench.report.errors import BenchError

KEYS = {
    "tokens_per_s",
    "itl_ms_p50",
    "itl_ms_p99",
    "newcomer_ttft_ms_p50",
    "newcomer_ttft_ms_p90",
    "device_idle_share",
    "cpu_s_per_1k_tokens",
    "machine",
    "commit",
    "seed",
    "config",
}


def client(**changes):
    seen = {
        "tokens_in_window": 40,
        "messages_in_window": 20,
        "gap_ms": [5.0, 5.0, 15.0],
        "ttft_ms": [9.0],
        "cpu_seconds": 0.1,
        "delivered": 60,
        "requests": 2,
        "failures": [],
    }
    return seen | changes


def test_busy_time_is_what_steps_cover_of_the_window() -> None:
    assert busy_seconds([0.0, 2.0, 9.0], [1.0, 4.0, 12.0], (0.5, 10.0)) == pytest.approx(0.5 + 2.0 + 1.0)


def test_figures_count_the_window_only() -> None:
    args = argparse.Namespace(**dict.fromkeys(OPTIONS, 1), seed=0)
    device = {"tokens": 123, "starts": [0.0, 10.0, 14.0], "ends": [2.0, 13.0, 16.0]}
    newcomers = client(ttft_ms=[20.0, 30.0, 60.0], tokens_in_window=3, delivered=3)
    found = outcome(args, [client(), client()], newcomers, device, {"scheduler": 0.8}, (10.0, 15.0)).figures
    assert found["tokens_per_s"] == pytest.approx(80 / 5)
    assert found["device_idle_share"] == pytest.approx(1 - 4 / 5)
    assert found["cpu_s_per_1k_tokens"] == {"scheduler": pytest.approx(10.0)}
    assert found["tokens_per_message"] == pytest.approx(2)
    assert found["itl_ms_p50"] == pytest.approx(5)
    assert found["rows_per_step"] == pytest.approx(123 / 3)
    assert found["newcomer_ttft_ms_p50"] == pytest.approx(30)
    assert found["newcomer_ttft_ms_p90"] == pytest.approx(54)


def test_a_lost_token_is_a_failure_and_not_a_figure() -> None:
    with pytest.raises(BenchError, match="121 tokens were produced and 120 delivered"):
        check_delivery([client(), client()], {"tokens": 121})
    with pytest.raises(BenchError, match="1 streams failed, the first: UNAVAILABLE"):
        check_delivery([client(failures=["UNAVAILABLE: ..."])], {"tokens": 60})


@pytest.mark.parametrize("door", [["--http"], pytest.param([], marks=pytest.mark.thorough)])
def test_real_processes_deliver_every_token(engine_bench, in_a_window, door) -> None:
    small = ["--streams", "6", "--step-ms", "4", "--prompt-len", "5", "--output-len", "40"]
    small += ["--frontends", "2", "--clients", "2"]

    def run(seconds):
        return engine_bench("control", *door, *small, "--seconds", str(seconds), "--warmup", str(seconds))

    result = in_a_window(run, lambda found: found["requests"] >= 6 and found["newcomer_ttft_ms_p50"] is not None)
    assert set(result) >= KEYS
    assert result["produced_tokens"] == result["delivered_tokens"] > 0
    assert set(result["cpu_s_per_1k_tokens"]) == {
        "scheduler",
        "worker 0",
        "frontend 0",
        "frontend 1",
        "client 0",
        "client 1",
    }
    assert 0 <= result["device_idle_share"] <= 1
    assert result["requests"] >= 6
    assert 0 < result["newcomer_ttft_ms_p50"] <= result["newcomer_ttft_ms_p90"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--streams", "0"], "--streams"), (["--clients", "300"], "--clients"), (["--seconds", "0"], "--seconds")],
)
def test_impossible_runs_are_refused_before_anything_starts(flags, message, capsys) -> None:
    assert main(["bench", "control", *flags]) == 1
    assert message in capsys.readouterr().err
