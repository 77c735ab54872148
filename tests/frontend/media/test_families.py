"""Sizes, tokens and settings of the Qwen family, and of GLM-4.1V, equal to those of transformers' processor."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from quire.frontend.media.families.glm4v import GlmImages
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.families.table import READERS, of_request, read_family
from quire.frontend.media.families.videos.glm4v import Glm46Videos, GlmVideos
from quire.frontend.media.refused import MediaRefused

QWEN2 = QwenImages(placeholder_id=9, patch=14, merge=2, min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
QWEN3 = QwenImages(placeholder_id=9, patch=16, merge=2, min_pixels=65536, max_pixels=16777216)
TIGHT = QwenImages(placeholder_id=9, patch=16, merge=2, min_pixels=300 * 300, max_pixels=300 * 300)
ENLARGED = QwenImages(placeholder_id=9, patch=16, merge=2, min_pixels=2_000_000, max_pixels=2_100_000)
TINY = QwenImages(placeholder_id=9, patch=16, merge=2, min_pixels=1, max_pixels=1)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
}
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 300).map(lambda n: 32 * n))


def oracle(family: QwenImages) -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        patch_size=family.patch,
        merge_size=family.merge,
        size={"shortest_edge": family.min_pixels, "longest_edge": family.max_pixels},
    )


ORACLES = [(family, oracle(family)) for family in (QWEN2, QWEN3, TIGHT, ENLARGED, TINY)]


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 200)
@example(200, 1)
@example(3, 3)
@example(60, 12_000)
@example(4096, 4096)
@example(4097, 4096)
@example(256, 256)
@example(255, 257)
@example(16, 48)
@example(80, 80)
def test_patches_are_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    for family, processor in ORACLES:
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(MediaRefused, match=f"{width} x {height} pixels is more than 200 times the other"):
                family.size(height, width)
            continue
        (view,) = family.views(height, width)
        assert view.size == view.shape == family.size(height, width)
        grid = family.grid(*view.shape)
        assert grid[0] * grid[1] * grid[2] == processor.get_number_of_image_patches(height, width)
        assert family.num_tokens(grid) * 4 == grid[1] * grid[2]
        assert family.num_tokens(grid) <= family.max_tokens
        assert family.max_bytes == family.max_tokens * family.unit**2 * 3


GLM = GlmImages(placeholder_id=9, patch=14, merge=2, min_pixels=12_544, max_pixels=9_633_792)
GLMS = [
    GLM,
    GlmImages(placeholder_id=9, patch=14, merge=2, min_pixels=300 * 300, max_pixels=300 * 300 + 1),
    GlmImages(placeholder_id=9, patch=16, merge=2, min_pixels=1_999_999, max_pixels=2_100_001),
    GlmImages(placeholder_id=9, patch=16, merge=2, min_pixels=1, max_pixels=1),
]


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 201)
@example(27, 5600)
@example(29, 5801)
@example(6000, 6000)
def test_an_image_of_glm_counts_twice_and_a_narrow_one_is_widened_first(height: int, width: int) -> None:
    for family in GLMS:
        bounds = {"shortest_edge": family.min_pixels, "longest_edge": family.max_pixels}
        processor = Glm4vImageProcessorPil(patch_size=family.patch, size=bounds)
        try:
            wanted = processor.get_number_of_image_patches(height, width)
        except ValueError:
            with pytest.raises(MediaRefused, match="more than 200 times the other"):
                family.size(height, width)
            continue
        grid = family.grid(*family.size(height, width))
        assert grid[1] * grid[2] == wanted
        assert family.num_tokens(grid) <= family.max_tokens


def test_a_narrow_image_of_glm_is_refused_by_the_sides_that_were_sent() -> None:
    with pytest.raises(MediaRefused, match="one side of 4000 x 3 pixels is more than 200 times the other; cut"):
        GLM.size(3, 4000)


def glm(folder: Path, processor: dict, config: dict) -> GlmImages:
    family = read_family(write(folder, {"image_processor_type": "Glm4vImageProcessor"} | processor, config))
    assert isinstance(family, GlmImages)
    return family


def test_glms_settings_are_read_from_its_files(tmp_path: Path) -> None:
    bounds = {"shortest_edge": 12_544, "longest_edge": 9_633_792}
    family = glm(tmp_path, {"size": bounds, "patch_size": 14, "merge_size": 2}, {"model_type": "glm4v"})
    videos = GlmVideos(placeholder_id=151_343, patch=14, merge=2, min_pixels=12_544, max_pixels=9_633_792)
    assert family == GlmImages(
        placeholder_id=151_343, patch=14, merge=2, min_pixels=12_544, max_pixels=9_633_792, videos=videos
    )
    assert family.max_tokens == 6144
    settings = {"video_processor_type": "Glm46VVideoProcessor", "num_frames": 16}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(settings))
    family = glm(tmp_path, {}, {"model_type": "glm4v_moe", "image_token_id": 5})
    videos = Glm46Videos(placeholder_id=5, patch=14, merge=2, min_pixels=12_544, max_pixels=47_040_000)
    assert family == GlmImages(
        placeholder_id=5, patch=14, merge=2, min_pixels=12_544, max_pixels=11_760_000, videos=videos
    )
    lowered = of_request(family, {"max_pixels": 20_000, "fps": 1}, "image")
    assert (lowered.max_pixels, lowered.videos) == (20_000, videos)
    watched = of_request(family, {"fps": 1}, "video")
    assert (watched.videos.fps, watched.videos.is_paced, watched.max_pixels) == (1, False, family.max_pixels)


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({}, {"model_type": "qwen2_vl"}, "only model_type glm4v, glm46v, glm4v_moe have it, got 'qwen2_vl'"),
        ({}, {"model_type": ["glm4v"]}, r"only model_type glm4v, glm46v, glm4v_moe have it, got \['glm4v'\]"),
        ({"resample": "9" * 999}, {"model_type": "glm4v"}, "resample: '9{63} is not supported; only 3 is"),
        ({"temporal_patch_size": 1}, {"model_type": "glm4v"}, "temporal_patch_size: 1 is not supported; only 2 is"),
        ({"resample": 2}, {"model_type": "glm4v"}, "resample: 2 is not supported; only 3 is"),
        ({"patch_size": 0}, {"model_type": "glm4v"}, "patch: must be at least 1, got 0"),
        ({"max_pixels": 1}, {"model_type": "glm4v"}, "min_pixels: 12544 exceeds max_pixels, 1"),
        ({"max_duration": 60}, {"model_type": "glm4v"}, "max_duration: 60 is not supported; only 300 is"),
        ({"video_processor_type": "Other"}, {"model_type": "glm4v"}, "video_processor_type: 'Other' is not known"),
    ],
)
def test_what_glms_files_may_not_say_is_refused(processor: dict, config: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        glm(tmp_path, processor, config)


def test_the_largest_image_of_published_models_has_as_many_tokens_as_is_said() -> None:
    assert QWEN3.max_tokens == 16384 == QWEN3.num_tokens(QWEN3.grid(*QWEN3.size(4096, 4096)))
    assert QWEN2.max_tokens == 1280 == QWEN2.num_tokens(QWEN2.grid(*QWEN2.size(28 * 32, 28 * 40)))


def test_the_largest_image_of_any_bounds_is_told_at_once() -> None:
    family = QwenImages(placeholder_id=9, patch=1, merge=1, min_pixels=10**40, max_pixels=10**40)
    assert family.max_tokens >= 10**40


def write(folder: Path, processor: object, config: object, name: str = "preprocessor_config.json") -> Path:
    (folder / name).write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("suffix", ["", "Fast", "Pil"])
def test_settings_are_read_from_the_models_file(tmp_path: Path, suffix: str) -> None:
    processor = PROCESSOR | {"image_processor_type": "Qwen2VLImageProcessor" + suffix, "image_mean": [0.5] * 3}
    family = read_family(write(tmp_path, processor, {"image_token_id": 151655}))
    assert family == QwenImages(placeholder_id=151655, patch=16, merge=2, min_pixels=65536, max_pixels=16777216)
    assert family.placeholder == "<|image_pad|>"


def test_a_file_of_all_processors_goes_before_that_of_images_alone(tmp_path: Path) -> None:
    write(tmp_path, PROCESSOR | {"patch_size": 14}, {"image_token_id": 7})
    family = read_family(
        write(tmp_path, {"image_processor": PROCESSOR}, {"image_token_id": 7}, "processor_config.json")
    )
    assert family is not None
    assert family.patch == 16
    write(tmp_path, {"processor_class": "Qwen3VLProcessor"}, {"image_token_id": 7}, "processor_config.json")
    family = read_family(tmp_path)
    assert family is not None
    assert family.patch == 14


def test_old_names_of_bounds_go_before_new_ones_and_the_servers_before_both(tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR | {"min_pixels": 3136, "max_pixels": 12845056}, {"image_token_id": 7})
    bounds = [
        (family.min_pixels, family.max_pixels)
        for overrides in (
            {},
            {"max_pixels": 99999},
            {"min_pixels": 100, "max_pixels": 200},
            {"size": {"shortest_edge": 1000, "longest_edge": 2000}},
            {"size": {"longest_edge": 5000}},
            {"max_pixels": 1000},
            {"size": {"longest_edge": 1000}},
        )
        if (family := read_family(folder, overrides)) is not None
    ]
    assert bounds == [
        (3136, 12845056),
        (3136, 99999),
        (100, 200),
        (1000, 2000),
        (3136, 5000),
        (1000, 1000),
        (1000, 1000),
    ]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"fps": 2}, "fps: is no setting of this model's images; it has min_pixels, max_pixels, size"),
        ({"min_pixels": 16777217}, "min_pixels: 16777217 exceeds max_pixels, 16777216"),
        ({"min_pixels": 0}, "min_pixels: must be from 1 to 1099511627776 pixels, got 0"),
        ({"min_pixels": 1 << 41}, "min_pixels: must be from 1 to 1099511627776 pixels, got more"),
        ({"min_pixels": 10**400, "max_pixels": 10**400}, "min_pixels: must be from 1 to 1099511627776 pixels"),
        ({"max_pixels": 1e15}, "max_pixels: must be a whole number of pixels, got 1000000000000000.0"),
        ({"max_pixels": float("inf")}, "max_pixels: must be a whole number of pixels, got inf"),
        ({"size": {"longest_edge": 1 << 41}}, "size: longest_edge: must be from 1 to 1099511627776 pixels"),
        ({"max_pixels": "many"}, "max_pixels"),
        ({"max_pixels": True}, "max_pixels"),
        ({"size": 448}, "size: must have shortest_edge and longest_edge, got 448"),
        ({"size": {"height": 448, "width": 448}}, "size: must have shortest_edge and longest_edge, got {'height': 448"),
        ({"size": {"longest_edge": 70000, "max_pixels": 70000}}, "size: must have shortest_edge and longest_edge"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused_by_name(tmp_path: Path, overrides: dict, said: str) -> None:
    folder = write(tmp_path, PROCESSOR, {"image_token_id": 7})
    with pytest.raises(ValueError, match=f"^mm_processor_kwargs: .*{said}"):
        read_family(folder, overrides)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"patch_size": None}, "patch_size"),
        ({"merge_size": 0}, "merge: must be at least 1, got 0"),
        ({"size": None}, "missing required field `min_pixels`"),
        ({"resample": 2}, "resample: 2 is not supported; only 3 is"),
        ({"do_resize": False}, "do_resize: False is not supported; only True is"),
    ],
)
def test_nothing_is_assumed_of_a_model(tmp_path: Path, change: dict, said: str) -> None:
    folder = write(tmp_path, PROCESSOR | change, {"image_token_id": 7})
    with pytest.raises(ValueError, match="preprocessor_config.json: .*" + said):
        read_family(folder)


def test_models_without_images_have_no_family(tmp_path: Path) -> None:
    assert read_family(tmp_path) is None
    assert read_family(write(tmp_path, {"image_processor_type": "SiglipImageProcessor"}, {"image_token_id": 7})) is None
    assert read_family(write(tmp_path, PROCESSOR, {})) is None


def test_a_towers_images_of_another_family_are_refused_and_not_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, {"image_processor_type": "CLIPImageProcessor"}, {"vision_config": {}})
    with pytest.raises(
        ValueError, match=r"image_processor_type: 'CLIPImageProcessor' is not known; .*language_model_only"
    ):
        read_family(folder)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: does not read"):
        read_family(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: is no JSON object"):
        read_family(tmp_path)


ODD = [None, 0, -1, 2, 14, 1.5, 10**30, "", "x", [], [1, 2], [[1], None], {}, {"height": "x"}, {"a": []}, True]
FIELDS = {
    "size": {"height": 28, "width": 28},
    "patch_size": 14,
    "image_size": 28,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "merge_size": 2,
    "model_type": "gemma4",
    "image_token_id": 5,
    "image_token_index": 5,
    "mm_tokens_per_image": 4,
    "image_seq_length": 4,
    "image_grid_pinpoints": [[28, 28]],
    "spatial_merge_size": 2,
}


@pytest.mark.parametrize("name", READERS)
def test_whatever_the_files_say_they_are_read_or_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    draw = random.Random(name)

    def section() -> dict:
        return {field: value if draw.random() < 0.7 else draw.choice(ODD) for field, value in FIELDS.items()}

    for _ in range(40):
        towers = ("text_config", "vision_config")
        sections = {one: section() if draw.random() < 0.9 else draw.choice(ODD) for one in towers}
        (tmp_path / "config.json").write_text(json.dumps(section() | sections))
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(section() | {"image_processor_type": name}))
        with suppress(ValueError):
            read_family(tmp_path)
