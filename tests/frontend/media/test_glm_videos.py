"""Frames, sizes and texts of the videos of GLM, equal to those of transformers' processors."""

import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from video_oracle import GlmOracle

from quire.frontend.media.families.videos.glm4v import ROW, Glm46Videos, GlmVideos
from quire.frontend.media.refused import MediaRefused

BOUNDS = {"placeholder_id": 8, "patch": 14, "merge": 2, "min_pixels": 12_544, "max_pixels": 47_040_000}
OLDER, NEWER = GlmVideos(**BOUNDS), Glm46Videos(**BOUNDS)
ALL = [
    OLDER,
    NEWER,
    msgspec.structs.replace(OLDER, fps=0.7),
    msgspec.structs.replace(OLDER, min_pixels=300_001, max_pixels=300_001),
]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 4000), st.integers(1, 90).map(lambda n: 28 * n))
RATES = st.one_of(st.sampled_from([1.0, 10.0, 23.976, 24.0, 25.0, 29.97, 30.0, 60.0]), st.floats(0.3, 240))


@given(st.integers(1, 9000), RATES)
@example(1, 1.0)
@example(24, 24.0)
@example(900, 30.0)
@example(901, 30.0)
@example(9000, 30.0)
@example(9000, 29.97)
@example(9000, 3.5)
@examples(60)
def test_frames_are_those_of_transformers(num_frames: int, fps: float) -> None:
    for videos in ALL:
        wanted = GlmOracle(videos).sample(num_frames, fps)
        assert videos.sample(num_frames, fps) == (wanted or [0, 0])  # it reads none of the shortest videos


@given(st.integers(1, 9000), st.integers(1, 768))
def test_a_number_of_frames_is_spread_over_the_video(num_frames: int, asked: int) -> None:
    for videos in (OLDER, NEWER):
        found = videos.with_settings({"num_frames": asked}).sample(num_frames, 25.0)
        assert len(found) % 2 == 0
        assert len(dict.fromkeys(found)) == min(asked, num_frames)
        assert found[0] == 0
        assert found[-1] == (num_frames - 1 if asked > 1 else 0)


def test_a_rate_that_is_asked_for_goes_before_that_of_4_6_and_no_more_than_are_taken_are_read() -> None:
    asked = {"fps": 1}
    assert NEWER.with_settings(asked).sample(900, 30.0) == OLDER.with_settings(asked).sample(900, 30.0)
    assert len(NEWER.with_settings(asked).sample(900, 30.0)) == 30
    many = OLDER.with_settings({"fps": 30}).sample(9000, 30.0)
    assert (len(many), many[0], many[-1]) == (768, 0, 8999)


@pytest.mark.parametrize("fps", [0.001, 0.003, 0.004])
@pytest.mark.parametrize("num_frames", [1, 25, 7500, 7501, 90_000])
def test_the_slowest_rate_still_reads_a_frame(fps: float, num_frames: int) -> None:
    for videos in (OLDER, NEWER):
        assert videos.with_settings({"fps": fps}).sample(num_frames, 25.0) == [0, 0]


@given(st.integers(2, 768), SIDES, SIDES)
@example(2, 1, 1)
@example(3, 27, 6000)
@example(768, 1080, 1920)
@examples(60)
def test_sizes_are_those_of_transformers(num_frames: int, height: int, width: int) -> None:
    for videos in ALL:
        try:
            wanted = GlmOracle(videos).size(num_frames, height, width)
        except ValueError:
            with pytest.raises(MediaRefused, match="more than 200 times the other"):
                videos.size(num_frames, height, width)
        else:
            assert videos.size(num_frames, height, width) == wanted


@given(st.integers(1, 3000), RATES, st.integers(1, 4), st.integers(1, 4))
@examples(40)
def test_texts_are_those_of_transformers(num_frames: int, fps: float, rows: int, columns: int) -> None:
    """A placeholder of ours becomes as many as its item has tokens."""
    for videos in ALL:
        indices = videos.sample(num_frames, fps)
        text = videos.spelled(videos.seconds(indices, num_frames, fps))
        long = text.replace(ROW, ROW * (rows * columns))
        assert long == GlmOracle(videos).text(num_frames, fps, indices, 2 * rows, 2 * columns)


@pytest.mark.parametrize("fps", [5e-324, 1e-20, 1e-4, 1e-3])
@pytest.mark.parametrize("num_frames", [1, 24, 1 << 20])
def test_a_rate_that_nobody_means_is_refused(num_frames: int, fps: float) -> None:
    for videos in (OLDER, NEWER):
        if num_frames > 1e6 * fps:
            with pytest.raises(MediaRefused, match="at most 1000000 seconds are read"):
                videos.sample(num_frames, fps)
        else:
            assert len(videos.sample(num_frames, fps)) <= videos.max_frames
