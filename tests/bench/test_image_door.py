"""The program that measures the front door's limits for images runs whole, in small; how fast it is, is not asked."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("image_door.py")


def image_door(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--only", *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {"bench", "machine", "commit", "seed", "config"} < set(found)
    return found


def test_an_image_is_timed_up_to_its_submit_beside_its_decoding_alone() -> None:
    found = image_door("submit", "--images", "3")["submit"]
    for door in ("grpc", "http"):
        assert 0 < found[f"{door}_ms_p50"] < found[f"{door}_from_send_ms_p50"]
        assert 0 < found[f"{door}_decode_cpu_ms"] < found[f"{door}_cpu_ms"], "decoded for each request, none kept"
    assert found["value"] == max(found[f"{door}_added_ms_p50"] for door in ("grpc", "http"))


def test_gaps_beside_eight_images_and_without_them_are_told_apart() -> None:
    found = image_door("beside", "--seconds", "4", "--streams", "3")["beside"]
    for door in ("grpc", "http"):
        assert found[door]["long_prompts"] > 0
        assert found[door]["long_prompt_tokens"] > 8 * 60 * 34
    assert found["value"] == max(found[door]["p99_ratio"] for door in ("grpc", "http"))


def test_one_process_and_two_are_measured_side_by_side() -> None:
    found = image_door("processes", "--rounds", "1", "--images", "24")["processes"]
    assert found["1_images_per_s"] > 0
    assert found["value"] == pytest.approx(found["2_images_per_s"] / found["1_images_per_s"])
