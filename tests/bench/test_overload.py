"""The program that measures an engine under ten times its load runs whole, in small; how fast it is, is not asked."""

import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import overload


def test_clients_count_what_was_answered_and_refused_in_their_window(scripted_server, in_a_window, monkeypatch) -> None:
    target, script = scripted_server
    script.places = 2
    monkeypatch.setattr(overload, "SETTLE_SECONDS", 0.0)

    def run(seconds):
        asked = {"door": "grpc", "target": target, "streams": 6, "output_len": 8, "again": 0.05}
        return asyncio.run(overload.load(asked | {"seconds": seconds + 0.5}))

    found = in_a_window(run, lambda found: found["refusals"] and found["tokens_per_s"])
    assert found["other"] == {}
    assert found["refusals"] > 0
    assert 0 < found["refusal_ms_p50"] <= found["refusal_ms_p99"]
    assert found["tokens_per_s"] > 0
    assert found["itl_ms_p50"] > 0
    assert script.most_open == 2


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
