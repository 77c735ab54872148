"""The program that measures the front door's limits for images runs whole, in small; how fast it is, is not asked."""

import pytest


def test_an_image_is_timed_up_to_its_submit_beside_its_decoding_alone(program) -> None:
    document = program("image_door.py", "--only", "submit", "--images", "1")
    assert {"bench", "machine", "commit", "seed", "config"} < set(document)
    found = document["submit"]
    for door in ("grpc", "http"):
        assert 0 < found[f"{door}_ms_p50"] < found[f"{door}_from_send_ms_p50"]
        # half: the same work takes more time of a processor beside others
        assert 0 < found[f"{door}_decode_cpu_ms"] / 2 < found[f"{door}_cpu_ms"], "decoded for each request, none kept"
    assert found["value"] == max(found[f"{door}_added_ms_p50"] for door in ("grpc", "http"))


@pytest.mark.thorough
def test_gaps_beside_eight_images_and_without_them_are_told_apart(program, in_a_window) -> None:
    def run(seconds):
        return program("image_door.py", "--only", "beside", "--streams", "3", "--seconds", str(seconds + 3))["beside"]

    found = in_a_window(run, lambda found: min(found[door]["long_prompts"] for door in ("grpc", "http")) > 0)
    for door in ("grpc", "http"):
        assert found[door]["long_prompts"] > 0
        assert found[door]["long_prompt_tokens"] > 8 * 60 * 34
    assert found["value"] == max(found[door]["p99_ratio"] for door in ("grpc", "http"))


@pytest.mark.thorough
def test_one_process_and_two_are_measured_side_by_side(program) -> None:
    found = program("image_door.py", "--only", "processes", "--rounds", "1", "--images", "24")["processes"]
    assert found["1_images_per_s"] > 0
    assert found["value"] == pytest.approx(found["2_images_per_s"] / found["1_images_per_s"])
