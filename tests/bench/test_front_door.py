"""The program that measures the front door's limits runs whole, in small; how fast this machine is, is not asked."""

import pytest

ITL = {"quiet_itl_ms_p99", "long_itl_ms_p99", "long_prompts", "long_prompt_tokens", "p99_ratio"}


def test_every_door_is_timed_up_to_the_submit_with_prompts_of_the_asked_length(program) -> None:
    document = program("front_door.py", "--only", "ttft", "--requests", "3", "--prompt-len", "200")
    assert {"bench", "machine", "commit", "seed", "config"} < set(document)
    found = document["ttft"]
    for door in ("grpc", "http"):
        assert found[f"{door}_text_tokens"] == pytest.approx(200, rel=0.05)
        assert found[f"{door}_chat_tokens"] > found[f"{door}_text_tokens"]
        for kind in ("text", "chat"):
            assert 0 < found[f"{door}_{kind}_ms_p50"] <= found[f"{door}_{kind}_ms_p99"]
            assert found[f"{door}_{kind}_ms_p50"] < found[f"{door}_{kind}_from_send_ms_p50"]
    assert found["limit"] == 2.0


@pytest.mark.thorough
def test_gaps_beside_a_long_prompt_and_without_one_are_told_apart(program, in_a_window) -> None:
    small = ["--only", "tokenize-long", "--streams", "3", "--long-prompt-len", "9000"]

    def run(seconds):
        return program("front_door.py", *small, "--seconds", str(seconds + 1))["tokenize-long"]

    found = in_a_window(run, lambda found: min(found[door]["long_prompts"] for door in ("grpc", "http")) > 1)
    for door in ("grpc", "http"):
        assert set(found[door]) >= ITL
        assert found[door]["long_prompts"] > 1
        assert found[door]["long_prompt_tokens"] == pytest.approx(9000, rel=0.05)
        assert found[door]["gaps"]["quiet"] > 0
    assert found["value"] == max(found[door]["p99_ratio"] for door in ("grpc", "http"))


@pytest.mark.thorough
def test_both_doors_and_structured_output_are_measured_side_by_side(program) -> None:
    small = ["--rounds", "1", "--http-streams", "4", "--http-answers", "2", "--output-len", "20", "--steps", "3"]
    found = program("front_door.py", "--only", "http", "structured", *small)
    for name in ("grpc_tokens_per_s", "http_tokens_per_s"):
        assert found["http"][name] > 0
    assert found["http"]["value"] == pytest.approx(
        found["http"]["grpc_tokens_per_s"] / found["http"]["http_tokens_per_s"]
    )
    for name in ("free_tokens_per_s", "guided_tokens_per_s"):
        assert found["structured"][name] > 0
