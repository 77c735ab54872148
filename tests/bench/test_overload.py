"""The program that measures an engine under ten times its load runs whole, in small; how fast it is, is not asked."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("overload.py")


def test_under_the_excess_all_who_are_not_answered_are_refused_through_both_doors() -> None:
    small = ["--places", "8", "--streams", "60", "--seconds", "2", "--rounds", "1", "--again", "0.2", "--step-ms", "5"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *small, "--cores", "0", "0"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"bench", "machine", "commit", "config"} < set(found)
    for door in ("grpc", "http"):
        (one,) = found[door]["rounds"]
        assert one["other"] == {}
        assert one["refusals"] > 20
        assert 0 < one["refusal_ms_p50"] <= one["refusal_ms_p99"]
        assert one["tokens_per_s"] > 0
        assert found[door]["goodput"] == one["goodput"] == one["tokens_per_s"] / one["peak_tokens_per_s"]
