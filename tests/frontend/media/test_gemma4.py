"""Sizes, pixels and tokens of Gemma 4, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import Image
from transformers.models.gemma4.image_processing_pil_gemma4 import (
    Gemma4ImageProcessorPil,
    get_aspect_ratio_preserving_size,
)
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from tiny_gemma4 import BEGIN, END, PATCH, PATCHES, POOL, PROCESSOR, ROW, TOWER, library_file, write_tokenizer, written
from tokenizers import Tokenizer

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.expand import expand, spell
from quire.frontend.media.families.budget_size import BUDGETS
from quire.frontend.media.families.gemma4 import Gemma4Images
from quire.frontend.media.families.table import of_request, read_family
from quire.frontend.media.families.videos.gemma4 import Gemma4Videos
from quire.frontend.media.store import StoredMedia, StoredPart

CONFIG = {"model_type": "gemma4", "image_token_id": 6, "vision_config": TOWER}
IMAGE = {**PROCESSOR, "image_processor_type": "Gemma4ImageProcessor"}
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 250).map(lambda n: 48 * n))


def family_of(patch: int, merge: int, max_tokens: int) -> Gemma4Images:
    return Gemma4Images(placeholder_id=6, patch=patch, merge=merge, max_tokens=max_tokens, num_positions=10_240)


FAMILIES = [family_of(16, 3, budget) for budget in BUDGETS] + [family_of(48, 1, 280), family_of(14, 2, 140)]


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 12_000)
@example(12_000, 1)
@example(48, 48)
@example(768, 768)
@example(816, 768)
@example(100, 7_000)
@example(7_001, 100)
def test_sizes_are_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    for family in FAMILIES:
        size = get_aspect_ratio_preserving_size(
            height, width, family.patch, family.max_tokens * family.merge**2, family.merge
        )
        ((grid, (view,)),) = family.items(height, width)
        assert view.size == view.shape == size
        assert grid == (1, size[0] // family.patch, size[1] // family.patch)
        assert 1 <= family.num_tokens(grid) == size[0] * size[1] // family.unit**2 <= family.max_tokens
        assert size[0] * size[1] * 3 <= family.max_bytes
        assert max(grid) <= family.max_tokens * family.merge


def picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))


@given(st.integers(4, 330), st.integers(4, 330), st.sampled_from([(4, 3, 70), (4, 3, 280), (8, 1, 70)]))
@example(4, 330, (4, 3, 70))
@example(330, 4, (4, 3, 70))
@example(84, 120, (4, 3, 70))
@examples(60)
def test_pixels_are_those_of_transformers_bit_for_bit(height: int, width: int, sizes: tuple[int, int, int]) -> None:
    patch, merge, budget = sizes
    image, family = picture(height, width), family_of(*sizes)
    processor = Gemma4ImageProcessorPil(patch_size=patch, pooling_kernel_size=merge, max_soft_tokens=budget)
    theirs = processor(images=[image], return_tensors="np")
    ((grid, pixels),) = image_items(image, family)
    _, rows, columns = grid
    assert theirs["num_soft_tokens_per_image"] == [family.num_tokens(grid)]
    values = (np.arange(256) * (1 / 255)).astype(np.float32)[np.frombuffer(pixels, np.uint8)]
    patches = values.reshape(rows, patch, columns, patch, 3).swapaxes(1, 2).reshape(rows * columns, -1)
    assert np.array_equal(patches, theirs["pixel_values"][0][: rows * columns])
    where = theirs["image_position_ids"][0]
    assert where[: rows * columns].tolist() == [[column, row] for row in range(rows) for column in range(columns)]
    assert (where[rows * columns :] == -1).all()


@given(st.integers(1, 20_000), st.integers(1, 768), st.floats(0.5, 120))
@example(9, 9, 24.0)
@example(1, 1, 24.0)
@example(3600, 32, 24.0)
def test_frames_of_a_video_are_those_of_transformers(num_frames: int, asked: int, fps: float) -> None:
    videos = Gemma4Videos(placeholder_id=7, patch=16, merge=3, max_tokens=70, num_frames=asked)
    indices = videos.sample(num_frames, fps)
    if asked > num_frames:  # which the library refuses: all frames are read
        assert indices == list(range(num_frames))
        return
    metadata = VideoMetadata(total_num_frames=num_frames, fps=fps)
    processor = object.__new__(BaseVideoProcessor)
    processor.fps = None
    theirs = processor.sample_frames(metadata, num_frames=asked).tolist()
    assert indices == [at for at in theirs if at < num_frames]


@pytest.mark.parametrize(("count", "fps"), [(1, 24.0), (5, 24.0), (70, 1.0), (3, 0.01)])
def test_the_text_of_a_video_is_that_of_transformers(count: int, fps: float) -> None:
    videos = Gemma4Videos(placeholder_id=7, patch=4, merge=3, max_tokens=70)
    seconds = videos.seconds(range(count), count, fps)
    assert videos.spelled(seconds) == written(count, 1, fps)
    height, width = videos.size(count, 90, 160)
    assert height * width <= videos.max_pixels
    assert (height, width) == get_aspect_ratio_preserving_size(90, 160, 4, 70 * 9, 3)


def test_a_request_says_how_many_frames_are_read(tmp_path: Path) -> None:
    family = read_family(write(tmp_path))
    assert isinstance(family, Gemma4Images)
    changed = of_request(family, {"num_frames": 3}, "video")
    assert isinstance(changed, Gemma4Images)
    assert family.videos is not None
    assert changed.videos is not None
    assert (family.videos.num_frames, changed.videos.num_frames) == (None, 3)
    assert of_request(family, {"num_frames": 3}, "image") == family


def test_a_model_without_a_token_for_videos_takes_none(tmp_path: Path) -> None:
    family = read_family(write(tmp_path, IMAGE, {**CONFIG, "video_token_id": None}))
    assert isinstance(family, Gemma4Images)
    assert family.videos is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma4")
    write_tokenizer(folder)
    return write(folder)


def write(folder: Path, image: object = IMAGE, config: object = CONFIG) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("sizes", [[(16, 16)], [(150, 70), (40, 200)], [(96, 64)] * 3])
def test_tokens_of_a_chat_are_those_of_transformers(sizes: list[tuple[int, int]], made: Path) -> None:
    family, tokenizer = read_family(made), Tokenizer.from_file(str(made / "tokenizer.json"))
    assert isinstance(family, Gemma4Images)
    images = [picture(*size) for size in sizes]
    parts, begin = [], "a quire"
    for number, image in enumerate(images):
        ((grid, pixels),) = image_items(image, family)
        stored = StoredMedia(bytes([number]) * 32, grid, family.num_tokens(grid), "f", len(pixels))
        parts.append(StoredPart((stored,)))
        begin += ROW + ("" if number % 2 else " of pages")
    spelled = spell(begin, family, parts)
    found, media = expand(tokenizer.encode(spelled, add_special_tokens=False).ids, family, parts, "prompt")
    processed = Gemma4ImageProcessorPil(**PROCESSOR)(images=images, return_tensors="np")
    names = SimpleNamespace(boi_token=BEGIN, image_token=ROW, eoi_token=END)
    processor = library_file("gemma4.processing_gemma4").Gemma4Processor
    runs = [processor.replace_image_token(names, processed, number) for number in range(len(images))]
    whole = "".join(piece + run for piece, run in zip(begin.split(ROW), [*runs, ""], strict=True))
    assert found.tolist() == tokenizer.encode(whole, add_special_tokens=False).ids
    row = tokenizer.token_to_id(ROW)
    assert all(set(found[one.span.start : one.span.stop]) == {row} for one in media)


def test_settings_are_read_from_the_models_files(tmp_path: Path) -> None:
    videos = Gemma4Videos(placeholder_id=258_884, patch=PATCH, merge=POOL, max_tokens=70)
    meant = Gemma4Images(placeholder_id=6, patch=PATCH, merge=POOL, max_tokens=70, num_positions=210, videos=videos)
    assert read_family(write(tmp_path)) == meant
    fast = {"image_processor_type": "Gemma4ImageProcessorFast", "max_soft_tokens": 70}
    assert read_family(write(tmp_path, fast)) == meant
    joined = {"image_processor_type": "Gemma4UnifiedImageProcessor"}
    config = {"model_type": "gemma4_unified", "vision_config": {**PATCHES, "mm_posemb_size": 280}}
    family = read_family(write(tmp_path, joined, config))
    assert isinstance(family, Gemma4Images)
    assert (family.placeholder_id, family.patch, family.merge) == (258_880, PATCH * POOL, 1)
    assert family.max_tokens == family.num_positions == 280


def test_a_model_without_a_tower_takes_no_images(tmp_path: Path) -> None:
    assert read_family(write(tmp_path, IMAGE, {**CONFIG, "vision_config": None})) is None


def test_a_servers_budget_goes_before_the_models(tmp_path: Path) -> None:
    folder = write(tmp_path, IMAGE, {**CONFIG, "vision_config": {**TOWER, "position_embedding_size": 840}})
    family = read_family(folder, {"max_soft_tokens": 280})
    assert isinstance(family, Gemma4Images)
    assert family.max_tokens == 280


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"max_pixels": 10}, "max_pixels: is no setting of this model's images; it has max_soft_tokens"),
        ({"max_soft_tokens": 100}, "max_soft_tokens: must be one of 70, 140, 280, 560, 1120, got 100"),
        ({"max_soft_tokens": "70"}, "Expected `int`, got `str` - at `max_soft_tokens`"),
        ({"max_soft_tokens": 140}, "max_soft_tokens: the 420 patches of a row may be more than 210"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused_by_name(tmp_path: Path, overrides: dict, said: str) -> None:
    with pytest.raises(ValueError, match=f"^mm_processor_kwargs: {said}"):
        read_family(write(tmp_path), overrides)


def test_frames_without_positions_are_refused_where_images_have_theirs(tmp_path: Path) -> None:
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({**IMAGE, "max_soft_tokens": 140}))
    with pytest.raises(ValueError, match="max_soft_tokens: the 420 patches of a row may be more than 210"):
        read_family(write(tmp_path))


@pytest.mark.parametrize(
    ("image", "config", "said"),
    [
        ({"resample": 2}, {}, "resample: 2 is not supported; only 3 is"),
        ({"do_resize": False}, {}, "do_resize: False is not supported"),
        ({"patch_size": 16}, {}, "patch_size: is 16, but config.json has 4; download both files again"),
        ({"pooling_kernel_size": 2}, {}, "pooling_kernel_size: is 2, but config.json has 3"),
        ({"max_soft_tokens": 71}, {}, "max_soft_tokens: must be one of 70"),
        ({}, {"model_type": "gemma3"}, "image_processor_type: only model_type gemma4 and gemma4_unified have it"),
        ({}, {"model_type": ["gemma4"]}, r"image_processor_type: only model_type .* have it, got \['gemma4'\]"),
        ({}, {"vision_config": 3}, "vision_config: config.json must state an object, got 3"),
        ({}, {"vision_config": {**TOWER, "patch_size": 0}}, "patch_size: vision_config of config.json must state"),
        ({}, {"vision_config": {**TOWER, "position_embedding_size": 200}}, "more than 200, which have positions"),
    ],
)
def test_files_that_cannot_be_followed_are_refused(tmp_path: Path, image: dict, config: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_family(write(tmp_path, {**IMAGE, **image}, {**CONFIG, **config}))
