"""The model half of `short_prompts.py` has a clock of its own: its figures are the same on every machine."""

import pytest

PROGRAM = "short_prompts.py"


def test_short_prompts_wait_at_most_four_full_steps_behind_24_of_4000_tokens(program) -> None:
    found = program(PROGRAM, "--only", "model")["model"]
    assert found["short_requests"] >= 50
    assert found["short_ttft_p99_in_full_steps"] <= 4.0
    assert found["short_ttft_in_steps"] == [3.0, 3.0, 3.0]
    # 96 000 tokens and what the others run take no step more than they fill, and a stream's steps are no longer
    assert found["tokens_run_per_s"] * found["full_step_s"] == pytest.approx(2048)
    assert found["full_step_s"] == pytest.approx(0.2098, rel=0.01)
    assert found["stream_gap_s"][-1] <= 0.2099


def test_a_crowd_of_short_prompts_takes_half_of_the_steps_and_no_more(program) -> None:
    alone = program(PROGRAM, "--only", "model", "--gap-steps", "1000", "--long", "6")["model"]
    crowd = program(PROGRAM, "--only", "model", "--gap-steps", "0.01", "--long", "6")["model"]
    assert max(after / before for after, before in zip(crowd["long_ttft_s"], alone["long_ttft_s"], strict=True)) <= 2.1


def test_a_real_engine_is_driven_to_its_end(program) -> None:
    found = program(
        PROGRAM,
        "--only",
        "engine",
        "--long",
        "3",
        "--long-len",
        "300",
        "--budget",
        "256",
        "--streams",
        "1",
        "--stream-len",
        "60",
        "--gap-seconds",
        "0.02",
    )["engine"]
    assert found["short_requests"] > 0
    assert found["short_ttft_p99_in_full_steps"] > 0
    assert len(found["long_ttft_s"]) == 3
