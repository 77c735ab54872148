"""The program that measures an engine under ten times its load runs whole, in small; how fast it is, is not asked."""

import pytest


@pytest.mark.thorough
def test_under_the_excess_all_who_are_not_answered_are_refused_through_both_doors(program, in_a_window) -> None:
    small = ["--places", "8", "--streams", "60", "--rounds", "1", "--again", "0.2", "--step-ms", "5"]
    small += ["--cores", "0", "0"]

    def run(seconds):
        return program("overload.py", *small, "--seconds", str(seconds + 1))

    def is_enough(found):
        rounds = [found[door]["rounds"][0] for door in ("grpc", "http")]
        return all(one["refusals"] and one["tokens_per_s"] for one in rounds)

    found = in_a_window(run, is_enough)
    assert {"bench", "machine", "commit", "config"} < set(found)
    for door in ("grpc", "http"):
        (one,) = found[door]["rounds"]
        assert one["other"] == {}
        assert one["refusals"] > 0
        assert 0 < one["refusal_ms_p50"] <= one["refusal_ms_p99"]
        assert one["tokens_per_s"] > 0
        assert found[door]["goodput"] == one["goodput"] == one["tokens_per_s"] / one["peak_tokens_per_s"]
