"""Frames, sizes, texts and times of videos, equal to those of transformers' processors."""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from video_oracle import Oracle

from quire.frontend.media.families.table import of_request, read_family
from quire.frontend.media.families.videos.intern import InternVideos
from quire.frontend.media.families.videos.qwen import Qwen2Videos, Qwen3Videos
from quire.frontend.media.refused import MediaRefused
from quire.proto.messages.media import NO_VIDEO
from quire.scheduler.core.media.admission import MAX_ELAPSED

QWEN2 = Qwen2Videos(placeholder_id=8, patch=14, merge=2, min_pixels=128 * 28 * 28, max_pixels=28 * 28 * 768)
QWEN25 = msgspec.structs.replace(QWEN2, tokens_per_second=2)
QWEN3 = Qwen3Videos(placeholder_id=8, patch=16, merge=2, min_pixels=128 * 32 * 32, max_pixels=32 * 32 * 768 * 32)
TIGHT = msgspec.structs.replace(QWEN3, max_pixels=200_000, min_frames=2, max_frames=9, fps=0.7)
CAPPED = [msgspec.structs.replace(one, cap_pixels_per_frame=True) for one in (QWEN2, QWEN3)]
ALL = [QWEN2, QWEN25, QWEN3, TIGHT, *CAPPED]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 4000), st.integers(1, 90).map(lambda n: 32 * n))
RATES = st.one_of(st.sampled_from([1.0, 10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0]), st.floats(0.3, 240))


@given(st.integers(2, 20_000), RATES)
@example(2, 30.0)
@example(3, 30.0)
@example(4, 1.0)
@example(1537, 2.0)
@example(20_000, 0.3)
def test_frames_are_those_of_transformers(num_frames: int, fps: float) -> None:
    for videos in ALL:
        assert videos.sample(num_frames, fps) == Oracle(videos).sample(num_frames, fps)


@given(st.integers(2, 3000), st.integers(2, 768))
def test_a_number_of_frames_goes_before_a_rate(num_frames: int, asked: int) -> None:
    for videos in (QWEN2, QWEN3):
        counted = videos.with_settings({"num_frames": asked})
        if videos is QWEN2 and round(asked / 2) * 2 > num_frames:  # which the library refuses: all frames are read
            assert counted.sample(num_frames, 25.0) == list(range(num_frames))
            continue
        assert counted.sample(num_frames, 25.0) == Oracle(counted).sample(num_frames, 25.0)


@given(st.integers(2, 768), SIDES, SIDES)
@example(2, 1, 1)
@example(3, 31, 6000)
@example(5, 1080, 1920)
@example(768, 1080, 1920)
def test_sizes_are_those_of_transformers(num_frames: int, height: int, width: int) -> None:
    for videos in ALL:
        try:
            wanted = Oracle(videos).size(num_frames, height, width)
        except ValueError:
            with pytest.raises(MediaRefused, match="more than 200 times the other"):
                videos.size(num_frames, height, width)
        else:
            assert videos.size(num_frames, height, width) == wanted


@given(st.integers(2, 5000), RATES, st.integers(1, 4), st.integers(1, 4))
def test_texts_are_those_of_transformers(num_frames: int, fps: float, rows: int, columns: int) -> None:
    """A placeholder of ours becomes as many as its item has tokens."""
    for videos in ALL:
        indices = videos.sample(num_frames, fps)
        text = videos.spelled(videos.seconds(indices, num_frames, fps))
        long = text.replace(videos.placeholder, videos.placeholder * (rows * columns))
        assert long == Oracle(videos).text(num_frames, fps, indices, 2 * rows, 2 * columns)


@given(st.integers(2, 5000), RATES)
def test_positions_in_time_are_those_that_were_published(num_frames: int, fps: float) -> None:
    indices = QWEN25.sample(num_frames, fps)
    seconds = QWEN25.seconds(indices, num_frames, fps)
    step = Oracle(QWEN25).second_per_grid(num_frames, fps, indices)
    assert QWEN25.elapsed(seconds) == [NO_VIDEO, *(math.floor(index * step * 2) for index in range(1, len(seconds)))]
    assert QWEN2.elapsed(seconds) == [NO_VIDEO, *range(1, len(seconds))]
    assert QWEN3.elapsed(seconds) == [NO_VIDEO] * len(seconds)


def test_a_single_frame_is_an_item_and_is_as_large_as_two(  # which the library refuses
) -> None:
    for videos in ALL:
        assert videos.sample(1, 24.0) == [0]
    assert QWEN3.size(1, 480, 640) == QWEN3.size(2, 480, 640)
    assert QWEN3.spelled(QWEN3.seconds([0], 1, 24.0)).startswith("<0.0 seconds>")
    assert QWEN25.elapsed(QWEN25.seconds([0], 1, 24.0)) == [NO_VIDEO]


@pytest.mark.parametrize("fps", [5e-324, 1e-300, 1e-20, 1e-4, 1e-3])
@pytest.mark.parametrize("num_frames", [1, 2, 24, 700, 1 << 20])
def test_a_rate_that_nobody_means_is_refused_before_times_are_without_bounds(num_frames: int, fps: float) -> None:
    """Such as one of a file's header."""
    for videos in (QWEN2, QWEN25, msgspec.structs.replace(QWEN25, tokens_per_second=16), QWEN3):
        indices = videos.sample(num_frames, fps)
        assert max(indices) < num_frames
        assert len(indices) <= videos.max_frames
        if num_frames > 1e6 * fps:
            with pytest.raises(MediaRefused, match=rf"has {num_frames} frames at {fps:g} a second; at most 1000000 "):
                videos.seconds(indices, num_frames, fps)
        else:
            assert max(videos.elapsed(videos.seconds(indices, num_frames, fps))) <= MAX_ELAPSED
    assert len(InternVideos(placeholder_id=8, patch=14, side=448, fps=1.0).sample(num_frames, fps)) <= 768


def test_positions_of_a_second_are_bounded() -> None:
    with pytest.raises(ValueError, match="tokens_per_second: must be above 0 and at most 16, got 17"):
        msgspec.structs.replace(QWEN25, tokens_per_second=17)
    for fps in (0.0009, 1000.5, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"fps: must be from 0\.001 to 1000"):
            InternVideos(placeholder_id=8, patch=14, side=448, fps=fps)


IMAGES = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2}
IMAGES |= {"size": {"shortest_edge": 65536, "longest_edge": 16777216}}
VIDEOS = IMAGES | {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 9, "longest_edge": 99}}
TOKENS = {"image_token_id": 7, "video_token_id": 8, "model_type": "qwen3_vl"}


@dataclass
class Model:
    """Files of a model in a folder."""

    folder: Path

    def write(self, **files: object) -> "Model":
        for name, value in files.items():
            (self.folder / f"{name}.json").write_text(json.dumps(value))
        return self

    @property
    def videos(self) -> Qwen2Videos | Qwen3Videos | None:
        family = read_family(self.folder)
        assert family is not None
        return family.videos


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path).write(config=TOKENS, preprocessor_config=IMAGES)


def test_settings_are_read_from_the_file_of_videos(model: Model) -> None:
    assert model.videos == Qwen3Videos(placeholder_id=8, patch=16, merge=2, min_pixels=65536, max_pixels=16777216)
    model.write(video_preprocessor_config=VIDEOS | {"fps": 1, "max_frames": 64})
    wanted = Qwen3Videos(placeholder_id=8, patch=16, merge=2, min_pixels=9, max_pixels=99, fps=1.0, max_frames=64)
    assert model.videos == wanted
    newer = VIDEOS | {"cap_pixels_per_frame": True, "num_frames": 6}
    model.write(processor_config={"image_processor": IMAGES, "video_processor": newer})
    assert model.videos == msgspec.structs.replace(
        wanted, fps=2.0, max_frames=768, cap_pixels_per_frame=True, num_frames=6
    )


def test_the_time_of_qwen2_5_is_told_by_its_tower(model: Model) -> None:
    model.write(config=TOKENS | {"model_type": "qwen2_vl", "vision_config": {}})
    assert isinstance(model.videos, Qwen2Videos)
    assert model.videos.tokens_per_second is None
    for vision, rate in (({}, 4), ({"tokens_per_second": 2}, 2)):
        model.write(config=TOKENS | {"model_type": "qwen2_5_vl", "vision_config": vision})
        assert model.videos.tokens_per_second == rate


def test_a_model_without_a_token_for_videos_takes_none(model: Model) -> None:
    assert model.write(config={"image_token_id": 7}).videos is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"video_processor_type": "Other"}, "video_processor_type: 'Other' is not known"),
        ({"resample": 2}, "resample: 2 is not supported"),
        ({"patch_size": 14}, "14, 2 of videos are not those of images"),
        ({"image_mean": [0.1] * 3}, r"image_mean: .* is not supported; only \[0.5"),
        ({"fps": 0}, "fps: must be from 0.001 to 1000 frames a second, got 0"),
        ({"fps": 1e-300}, "fps: must be from 0.001 to 1000 frames a second, got 1e-300"),
        ({"fps": 1001}, "fps: must be from 0.001 to 1000 frames a second, got 1001"),
        ({"num_frames": 800}, "num_frames: 800 exceeds the model's most, 768"),
        ({"min_frames": 0}, "min_frames: must be at least 1"),
    ],
)
def test_what_cannot_be_followed_is_refused(model: Model, changes: dict, said: str) -> None:
    model.write(preprocessor_config=IMAGES | {"image_mean": [0.5] * 3}, video_preprocessor_config=VIDEOS | changes)
    with pytest.raises(ValueError, match=said):
        _ = model.videos


def test_settings_of_a_request_change_the_kind_that_they_are_for(model: Model) -> None:
    family = msgspec.structs.replace(read_family(model.folder), max_pixels=100_000)
    most = family.max_pixels + 1
    of_images, of_videos = (of_request(family, {"max_pixels": 70_000, "fps": 4}, kind) for kind in ("image", "video"))
    assert (of_images.max_pixels, of_images.videos) == (70_000, family.videos)
    assert (of_videos.videos.max_pixels, of_videos.videos.fps) == (70_000, 4)
    assert msgspec.structs.replace(of_videos, videos=family.videos) == family
    with pytest.raises(ValueError, match=f"min_pixels: {most} exceeds"):
        of_request(family, {"min_pixels": most}, "image")
    assert of_request(family, {"min_pixels": most}, "video").videos.min_pixels == most


def test_settings_of_a_server_or_a_request_go_before_the_models(model: Model) -> None:
    family = read_family(model.folder, {"fps": 4})
    assert family is not None
    assert family.videos.fps == 4
    found = family.with_settings({"max_pixels": 70_000, "num_frames": 5})
    assert (found.max_pixels, found.videos.max_pixels, found.videos.num_frames) == (70_000, 70_000, 5)
    assert QWEN3.with_settings({"max_pixels": 1000}).min_pixels == 1000
    assert found.with_settings({"fps": 1}).videos.num_frames is None
    with pytest.raises(ValueError, match="mm_processor_kwargs: num_frames: 9999 exceeds"):
        read_family(model.folder, {"num_frames": 9999})
    both = read_family(model.folder, {"max_pixels": 70_000}, frames={"num_frames": 5})
    assert both is not None
    assert (both.max_pixels, both.videos.num_frames) == (70_000, 5)
    with pytest.raises(ValueError, match=r"^media_io_kwargs: num_frames: 9999 exceeds"):
        read_family(model.folder, {"max_pixels": 70_000}, frames={"num_frames": 9999})
