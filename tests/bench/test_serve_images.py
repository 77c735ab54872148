"""`quire bench serve --images`, cameras and the EVA preset, over gRPC; what is refused before anything is sent."""

import io

import numpy as np
import pytest
from PIL import Image

from quire.deploy.__main__ import main
from quire.deploy.bench.load.cameras import camera_figures, frame_moments
from quire.deploy.bench.load.images import photograph
from quire.deploy.bench.load.request_record import OK, RequestRecord


def record(seconds: float, status: str = OK) -> RequestRecord:
    return RequestRecord(sent=5.0, ended=5.0 + seconds, status=status)


def test_photographs_repeat_with_their_seed_and_are_as_large_as_those_of_a_camera() -> None:
    first, second = (photograph(320, 180, np.random.default_rng(1)) for _ in range(2))
    random = np.random.default_rng(1)
    assert first == second
    assert len({photograph(320, 180, random) for _ in range(20)}) == 20
    assert Image.open(io.BytesIO(first)).size == (320, 180)
    assert 0.1 < len(first) / (320 * 180) < 0.6, "bytes a pixel: neither a plain colour nor noise"


def test_images_over_grpc_are_bytes_in_a_chat(bench, scripted_server) -> None:
    target, script = scripted_server
    common = ["--num-prompts", "3", "--input-len", "4", "--output-len", "5"]
    result = bench("serve", "--target", target, *common, "--images", "2", "--image-size", "33x17")
    assert (result["errors"], result["output_tokens"]) == ({}, 15)
    assert all(len(request.chat.messages) == 1 and request.ignore_eos for request in script.requests)
    parts = [list(request.chat.messages[0].content_parts) for request in script.requests]
    assert all(len(turn) == 3 and len(turn[2].text.split()) == 4 for turn in parts)
    images = {part.image.data for turn in parts for part in turn[:2]}
    assert len(images) == 6
    assert {Image.open(io.BytesIO(image)).size for image in images} == {(33, 17)}


def test_cameras_send_at_their_interval_from_moments_of_their_own() -> None:
    moments = frame_moments(50, 4, 0.5, seed=2)
    by_camera = np.array(moments).reshape(4, 50)
    assert np.allclose(np.diff(by_camera, axis=0), 0.5)
    assert (by_camera[0] >= 0).all()
    assert (by_camera[0] < 0.5).all()
    assert len(set(by_camera[0])) == 50
    assert moments == frame_moments(50, 4, 0.5, seed=2)


def test_a_camera_is_sustained_when_its_frames_are_answered_within_the_interval() -> None:
    frames = [record(0.2), record(0.2), record(0.2), record(0.4), record(0.6), record(0.1, "UNAVAILABLE")]
    assert camera_figures(frames, 3, 0.5) == {
        "frames_in_time_share": pytest.approx(4 / 6),
        "cameras_sustained": 1,
    }
    assert camera_figures([record(0.1)] * 198 + [record(0.6)] * 2, 2, 0.5)["cameras_sustained"] == 2, "99 of 100 each"


def test_the_eva_preset_is_frames_behind_one_system_prompt(bench, scripted_server) -> None:
    target, script = scripted_server
    small = ["--cameras", "3", "--frames", "2", "--interval", "0.1", "--image-size", "32x32"]
    result = bench("serve", "--target", target, "--preset", "eva", *small)
    assert len(script.requests) == 1 + 3 * 2, "one goes before the clock starts"
    assert result["completed"] == 6
    assert result["output_tokens"] == 6 * 64
    assert (result["cameras"], result["config"]["preset"]) == (3, "eva")
    assert 0 <= result["cameras_sustained"] <= 3
    assert 0 <= result["frames_in_time_share"] <= 1
    systems = {request.chat.messages[0].content for request in script.requests}
    assert [len(system.split()) for system in systems] == [1500]
    assert len({request.chat.messages[1].content_parts[0].image.data for request in script.requests}) == 7


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--images", "-1"], "--images: must be at least 0"),
        (["--images", "1", "--image-size", "big"], "--image-size: expected WIDTHxHEIGHT"),
        (["--images", "1", "--image-size", "0x10"], "--image-size: expected WIDTHxHEIGHT"),
        (["--images", "1", "--image-size", "20000x10"], "got '20000x10'"),
        (["--image-size", "10x10"], "--image-size: there are no images"),
        (["--frames", "3"], "give --cameras N"),
        (["--cameras", "0"], "--cameras: must be at least 1"),
        (["--cameras", "2", "--frames", "0"], "--frames: must be at least 1"),
        (["--cameras", "2", "--interval", "0"], "--interval: must be above 0"),
        (["--cameras", "2", "--interval", "nan"], "--interval: must be above 0"),
        (["--cameras", "2", "--num-prompts", "9"], "--num-prompts: a camera sends as many"),
        (["--preset", "eva", "--rate", "3"], "--rate and --cameras"),
        (["--concurrency", "0"], "--concurrency: must be at least 1"),
    ],
)
def test_loads_that_cannot_be_are_refused_before_a_server_is_asked(flags, message, capsys) -> None:
    assert main(["bench", "serve", "--target", "127.0.0.1:1", *flags]) == 1
    assert message in capsys.readouterr().err
