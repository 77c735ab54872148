"""Tiles, pixels and tokens of LLaVA-OneVision, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import Image
from transformers import LlavaOnevisionProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_onevision import (
    ASPECT,
    IMAGE,
    PATCH,
    PINPOINTS,
    PROCESSOR,
    SIDE,
    TILE,
    VIDEO,
    library_processor,
    write_tokenizer,
)
from tokenizers import Tokenizer
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.expand import expand, spell
from quire.frontend.media.families.llava_onevision import OneVisionImages
from quire.frontend.media.families.table import read_family
from quire.frontend.media.families.videos.onevision import OneVisionVideos
from quire.frontend.media.refused import MediaRefused
from quire.frontend.media.store import StoredMedia, StoredPart

CONFIG = {
    "model_type": "llava_onevision",
    "image_token_index": 3,
    "video_token_index": 4,
    "image_grid_pinpoints": PINPOINTS,
    "vision_aspect_ratio": ASPECT,
    "vision_config": {"image_size": TILE, "patch_size": PATCH},
}
MEAN, STD = PROCESSOR["image_mean"], PROCESSOR["image_std"]
PUBLISHED = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]


def family_of(patch: int, side: int, pinpoints: list[list[int]], most: int) -> OneVisionImages:
    return OneVisionImages(
        placeholder_id=3,
        patch=patch,
        side=side,
        pinpoints=tuple((height, width) for height, width in pinpoints),
        max_tiles=most,
        videos=OneVisionVideos(placeholder_id=4, patch=patch, side=side),
    )


class Oracle:
    """The library's processors for a family."""

    def __init__(self, family: OneVisionImages) -> None:
        pinpoints = [list(size) for size in family.pinpoints]
        size = {"height": family.side, "width": family.side}
        self.images = LlavaOnevisionImageProcessorPil(
            size=size, image_grid_pinpoints=pinpoints, image_mean=MEAN, image_std=STD
        )
        self._texts = object.__new__(LlavaOnevisionProcessor)
        self._texts.image_processor = self.images
        self._texts.num_image_tokens = family.tile**2
        self._texts.vision_aspect_ratio = f"anyres_max_{family.max_tiles}"

    def num_tokens(self, height: int, width: int) -> int:
        side = self.images.size.height
        return self._texts._get_number_of_features(height, width, side, side)


FAMILIES = [
    family_of(14, 384, PUBLISHED, 9),
    family_of(PATCH, TILE, PINPOINTS, 5),
    family_of(16, 32, [[32, 64], [64, 32], [64, 64]], 1),
    family_of(10, 30, [[60, 90], [30, 30]], 2),
]
ORACLES = [(family, Oracle(family)) for family in FAMILIES]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 30).map(lambda n: 384 * n))


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 12_000)
@example(12_000, 1)
@example(384, 384)
@example(384, 768)
@example(2304, 2304)
@example(1152, 1920)
@example(1153, 1920)
@example(720, 1280)
def test_tokens_are_as_many_as_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    for family, oracle in ORACLES:
        try:
            (item,) = family.items(height, width)
        except MediaRefused:  # the tower of the library makes lines of no rows of it, and fails
            assert min(height, width) * 40 < max(height, width)
            continue
        assert family.num_tokens(item.grid) == oracle.num_tokens(height, width) <= family.max_tokens
        assert family.num_breaks(item.grid) == 0
        read = family.tile * family.patch
        assert {view.shape for view in item.views} == {(read, read)}
        assert item.grid[:3] == (1, family.tile * len(item.views), family.tile)
        assert len(item.views) * read**2 * 3 <= family.max_bytes


def picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))


def normalised(pixels: bytes, side: int) -> np.ndarray:
    """float32 [tiles, 3, side, side]: a byte of a channel stands for a number."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    tables = [(scaled - np.float32(mean)) / np.float32(std) for mean, std in zip(MEAN, STD, strict=True)]
    values = np.frombuffer(pixels, np.uint8).reshape(-1, side, side, 3)
    return np.stack([table[values[..., channel]] for channel, table in enumerate(tables)], axis=1)


@given(st.integers(1, 150), st.integers(1, 150), st.sampled_from(ORACLES[1:]))
@example(1, 1, ORACLES[1])
@example(1, 150, ORACLES[1])
@example(28, 28, ORACLES[1])
@example(56, 84, ORACLES[1])
@example(112, 112, ORACLES[1])
@example(60, 90, ORACLES[3])
@example(60, 60, ORACLES[3])
@examples(60)
def test_pixels_are_those_of_transformers_bit_for_bit(height, width, pair) -> None:
    """Of the patches that the tower reads: the pixels that are left of a tile are read by nobody."""
    family, oracle = pair
    ((_, pixels),) = image_items(picture(height, width), family)
    theirs = oracle.images(images=[picture(height, width)], return_tensors="np")["pixel_values"][0]
    read = family.tile * family.patch
    assert np.array_equal(normalised(pixels, read), theirs[..., :read, :read])


def write(folder: Path, processor: object, config: object, together: object = None) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps(config))
    if together is not None:
        (folder / "processor_config.json").write_text(json.dumps(together))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("onevision")
    write_tokenizer(made)
    together = {"num_image_tokens": SIDE**2, "vision_aspect_ratio": ASPECT}
    return write(made, PROCESSOR, CONFIG, together)


def stored(family: OneVisionImages, image: Image.Image) -> StoredPart:
    items = [
        StoredMedia(bytes(32), grid, family.num_tokens(grid), "f", len(pixels))
        for grid, pixels in image_items(image, family)
    ]
    return StoredPart(tuple(items))


@pytest.mark.parametrize("sizes", [[(28, 28)], [(50, 120), (20, 30)], [(112, 100)] * 3], ids=str)
def test_tokens_of_a_chat_are_those_of_transformers(sizes, folder: Path) -> None:
    images = [picture(*size) for size in sizes]
    text = f"a quire{IMAGE * len(images)}\nof pages<|im_end|>"
    family = read_family(folder)
    assert isinstance(family, OneVisionImages)
    parts = [stored(family, image) for image in images]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found, media = expand(tokenizer.encode(text, add_special_tokens=False).ids, family, parts, "prompt")
    theirs = library_processor(folder)(text=[text], images=images, return_tensors="np")
    assert found.tolist() == theirs["input_ids"][0].tolist()
    places = [at for one in media for at in range(one.span.start, one.span.stop)]
    assert places == np.flatnonzero(theirs["input_ids"][0] == 3).tolist()


@pytest.mark.parametrize("count", [1, 5])
def test_tokens_of_a_video_are_those_of_transformers(count: int, folder: Path) -> None:
    family = read_family(folder)
    assert isinstance(family, OneVisionImages)
    grids = [family.videos.grid(1, TILE, TILE, is_last=at == count - 1) for at in range(count)]
    items = [StoredMedia(bytes(32), grid, family.num_tokens(grid), "f", TILE) for grid in grids]
    video = StoredPart(tuple(items), "video", tuple(map(float, range(count))))
    parts = [stored(family, picture(40, 90)), video]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = f"see{IMAGE}{VIDEO}\nand"
    found, media = expand(
        tokenizer.encode(spell(text, family, parts), add_special_tokens=False).ids, family, parts, "prompt"
    )
    theirs = library_processor(folder)
    written = theirs.replace_video_token({"pixel_values_videos": np.zeros((1, count, 3, 1, 1))}, 0)
    assert found.tolist().count(4) == written.count(VIDEO) == sum(one.span.num_tokens for one in media[1:])
    assert len(media) == 1 + count


@given(st.integers(1, 20_000), st.integers(1, 768))
@example(9, 9)
@example(1, 1)
@example(768, 32)
def test_frames_are_those_of_transformers(num_frames: int, asked: int) -> None:
    videos = OneVisionVideos(placeholder_id=4, patch=PATCH, side=TILE, num_frames=asked)
    if asked > num_frames:  # which the library refuses: all frames are read
        assert videos.sample(num_frames, 25.0) == list(range(num_frames))
        return
    metadata = VideoMetadata(total_num_frames=num_frames, fps=25.0)
    processor = object.__new__(BaseVideoProcessor)
    processor.fps = None
    theirs = processor.sample_frames(metadata, num_frames=asked).tolist()
    assert videos.sample(num_frames, 25.0) == [at for at in theirs if at < num_frames]


def test_settings_are_read_from_the_models_files_and_the_servers_go_before_them(folder: Path, tmp_path: Path) -> None:
    assert read_family(folder) == FAMILIES[1]
    family = read_family(folder, {"image_grid_pinpoints": [[TILE, TILE]], "num_frames": 3})
    assert isinstance(family, OneVisionImages)
    assert (family.pinpoints, family.videos.num_frames) == (((TILE, TILE),), 3)
    left_out = {"image_grid_pinpoints": None, "vision_aspect_ratio": None}
    vision = {"vision_config": {"image_size": 384, "patch_size": 14}}
    size = {"size": {"height": 384, "width": 384}}
    assert read_family(write(tmp_path, PROCESSOR | left_out | size, CONFIG | left_out | vision)) == FAMILIES[0]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"max_pixels": 9}, "max_pixels: is no setting of this model's images; it has image_grid_pinpoints, fps"),
        ({"image_grid_pinpoints": []}, "image_grid_pinpoints: must be from 1 to 1024 sizes, got 0"),
        (
            {"image_grid_pinpoints": [[28, 30]]},
            r"image_grid_pinpoints: must be of whole tiles of 28 pixels, got .28, 3",
        ),
        ({"image_grid_pinpoints": [[28, 0]]}, "image_grid_pinpoints: must be of whole tiles"),
        ({"image_grid_pinpoints": [[28, 28 * 129]]}, "image_grid_pinpoints: must be of at most 128 tiles"),
        ({"image_grid_pinpoints": "large"}, "image_grid_pinpoints"),
        ({"num_frames": 0}, "num_frames: must be from 1 to 768, got 0"),
        ({"fps": 0}, "fps: must be from 0.001 to 1000 frames a second, got 0"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_followed_are_refused_by_name(overrides, said, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"^mm_processor_kwargs: .*{said}"):
        read_family(folder, overrides)


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({"resample": 2}, {}, "resample: 2 is not supported; only 3 is"),
        ({"do_center_crop": True}, {}, "do_center_crop: True is not supported; leave it out"),
        ({"size": None}, {}, "size: must have height and width"),
        ({"size": {"shortest_edge": 28}}, {}, "size: .* is no square of the 28 pixels of config.json"),
        ({"size": {"height": 28, "width": 56}}, {}, "size: .* is no square of the 28 pixels of config.json"),
        ({"image_grid_pinpoints": [[28, 28]]}, {}, "image_grid_pinpoints: is another one in config.json"),
        ({"image_grid_pinpoints": None}, {"image_grid_pinpoints": None}, "must be stated for tiles of 28 pixels"),
        ({}, {"vision_aspect_ratio": "pad"}, "vision_aspect_ratio: 'pad' is not supported; only anyres_max_N is"),
        ({}, {"vision_aspect_ratio": "anyres_max_0"}, "vision_aspect_ratio: must be from 1 to 128 tiles, got 0"),
        ({}, {"image_token_index": None}, "image_token_index: config.json must state a token"),
        ({}, {"video_token_index": None}, "video_token_index: config.json must state a token"),
        ({}, {"model_type": "llava_next"}, "only model_type llava_onevision has it, got 'llava_next'"),
        ({}, {"vision_config": {"image_size": 28, "patch_size": 29}}, "patch_size: must be from 1 to the 28 pixels"),
        ({}, {"vision_config": {"image_size": 28}}, "patch_size: vision_config of config.json must state"),
    ],
    ids=str,
)
def test_nothing_is_assumed_of_a_model(processor, config, said, tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR | processor, CONFIG | config)
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{said}"):
        read_family(folder)


@pytest.mark.parametrize(
    ("together", "said"),
    [
        ({"num_image_tokens": 16}, "num_image_tokens: processor_config.json has 16, but tiles of config.json have 9"),
        ({"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy: 'default' is not supported"),
        ({"vision_aspect_ratio": "anyres_max_9"}, "vision_aspect_ratio: is another one in config.json"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(together, said, tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR, CONFIG, together)
    with pytest.raises(ValueError, match=said):
        read_family(folder)


def test_a_grid_of_which_no_line_would_be_left_is_refused() -> None:
    family = family_of(14, 28, [[28, 28 * 40]], 1)
    with pytest.raises(MediaRefused, match="80 x 2 patches of it are too many, and none high or wide; cut the image"):
        family.items(10, 400)
