"""Tiles, pixels and tokens of InternVL, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_internvl import IMAGE, PATCH, PROCESSOR, SIDE, TILE, TOKENS, VIDEO, library_processor, write_tokenizer
from tokenizers import Tokenizer
from transformers.video_utils import VideoMetadata
from video_oracle import INTERN

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.expand import expand, spell
from quire.frontend.media.families.internvl import InternImages
from quire.frontend.media.families.table import read_family
from quire.frontend.media.families.videos.intern import InternVideos
from quire.frontend.media.store import StoredMedia, StoredPart
from quire.proto.messages.params import ParameterError

CONFIG = {
    "model_type": "internvl",
    "image_token_id": 4,
    "image_seq_length": TOKENS,
    "downsample_ratio": 0.5,
    "vision_config": {"image_size": [TILE, TILE], "patch_size": [PATCH, PATCH]},
}
MEAN, STD = PROCESSOR["image_mean"], PROCESSOR["image_std"]


def family_of(side: int, fewest: int, most: int, is_cut: bool = True) -> InternImages:
    numbers = {"min_tiles": fewest, "max_tiles": most, "is_cut": is_cut}
    videos = InternVideos(placeholder_id=4, patch=side // SIDE, side=side)
    return InternImages(placeholder_id=4, patch=side // SIDE, merge=2, side=side, videos=videos, **numbers)


def oracle(family: InternImages) -> GotOcr2ImageProcessorPil:
    return GotOcr2ImageProcessorPil(
        size={"height": family.side, "width": family.side},
        min_patches=family.min_tiles,
        max_patches=family.max_tiles,
        crop_to_patches=family.is_cut,
        image_mean=MEAN,
        image_std=STD,
    )


FAMILIES = [
    family_of(448, 1, 12),
    family_of(448, 1, 40),
    family_of(32, 1, 6),
    family_of(32, 3, 5),
    family_of(32, 4, 4),
    family_of(32, 1, 1),
    family_of(32, 1, 6, is_cut=False),
]
ORACLES = [(family, oracle(family)) for family in FAMILIES]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 30).map(lambda n: 448 * n))


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 12_000)
@example(12_000, 1)
@example(448, 448)
@example(448, 896)
@example(1344, 1792)
@example(448 * 3, 448 * 4)
@example(633, 634)
@example(634, 634)
@example(720, 1280)
def test_tiles_are_as_many_as_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    for family, processor in ORACLES:
        views = family.views(height, width)
        assert len(views) == processor.get_number_of_image_patches(height, width)
        assert len(views) <= family.max_items
        assert {view.shape for view in views} == {(family.side, family.side)}
        grid = family.grid(*views[0].shape)
        assert (grid, family.num_tokens(grid), family.num_breaks(grid)) == ((1, SIDE, SIDE), TOKENS, 0)
        assert len(views) * TOKENS <= family.max_tokens
        assert len(views) * family.side**2 * 3 <= family.max_bytes


def normalised(pixels: bytes, side: int) -> np.ndarray:
    """float32 [3, side, side]: a byte of a channel stands for a number."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    tables = [(scaled - np.float32(mean)) / np.float32(std) for mean, std in zip(MEAN, STD, strict=True)]
    values = np.frombuffer(pixels, np.uint8).reshape(side, side, 3)
    return np.stack([table[values[..., channel]] for channel, table in enumerate(tables)])


def picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))


@given(st.integers(1, 150), st.integers(1, 150), st.sampled_from(ORACLES[2:]))
@example(1, 1, ORACLES[2])
@example(1, 150, ORACLES[2])
@example(32, 32, ORACLES[2])
@example(64, 96, ORACLES[2])
@example(96, 64, ORACLES[3])
@examples(60)
def test_pixels_are_those_of_transformers_bit_for_bit(height, width, pair) -> None:
    family, processor = pair
    image = picture(height, width)
    found = [normalised(pixels, family.side) for _, pixels in image_items(image, family)]
    theirs = processor(images=[image], return_tensors="np")
    assert theirs["num_patches"].tolist() == [len(found)]
    assert np.array_equal(np.stack(found), theirs["pixel_values"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("internvl")
    write_tokenizer(made)
    return write(made, PROCESSOR, CONFIG)


def write(folder: Path, processor: object, config: object) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def stored(family: InternImages, image: Image.Image) -> StoredPart:
    items = [
        StoredMedia(bytes(32), grid, family.num_tokens(grid), "f", len(pixels))
        for grid, pixels in image_items(image, family)
    ]
    return StoredPart(tuple(items))


@pytest.mark.parametrize("sizes", [[(32, 32)], [(50, 120), (20, 30)], [(96, 64)] * 3])
def test_tokens_of_a_chat_are_those_of_transformers(sizes, folder: Path) -> None:
    """Whatever the files say of cutting: the processor of texts and images says that they are cut."""
    images = [picture(*size) for size in sizes]
    text = "a quire" + "".join(f"{IMAGE}\nof pages {number}" for number in range(len(images))) + "<|im_end|>"
    family = read_family(folder)
    assert isinstance(family, InternImages)
    parts = [stored(family, image) for image in images]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(spell(text, family, parts), add_special_tokens=False).ids
    found, media = expand(ids, family, parts, "prompt")
    theirs = library_processor(folder)(text=[text], images=images, return_tensors="np")
    assert found.tolist() == theirs["input_ids"][0].tolist()
    assert len(media) == len(theirs["pixel_values"])
    places = [at for one in media for at in range(one.span.start, one.span.stop)]
    assert places == np.flatnonzero(theirs["input_ids"][0] == 4).tolist()


def test_settings_are_read_from_the_models_files_and_the_servers_go_before_them(folder: Path) -> None:
    assert read_family(folder) == family_of(TILE, 1, 6)
    assert read_family(folder, {"max_patches": 3, "min_patches": 2}) == family_of(TILE, 2, 3)
    assert read_family(folder, {"crop_to_patches": False}) == family_of(TILE, 1, 6, is_cut=False)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"max_pixels": 9}, "max_pixels: is no setting of this model's images; it has min_patches, max_patches, crop"),
        ({"num_frames": 0}, "num_frames: must be from 1 to 768, got 0"),
        ({"fps": 0}, "fps: must be from 0.001 to 1000 frames a second, got 0"),
        ({"fps": "fast"}, "fps"),
        ({"max_patches": 0}, "max_patches: must be from 1 to 128, got 0"),
        ({"max_patches": 1 << 40}, "max_patches: must be from 1 to 128"),
        ({"min_patches": 7}, "min_patches: must be from 1 to max_patches, 6, got 7"),
        ({"min_patches": "many"}, "min_patches"),
        ({"crop_to_patches": 1}, "crop_to_patches"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused_by_name(overrides, said, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"^mm_processor_kwargs: .*{said}"):
        read_family(folder, overrides)


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({"resample": 2}, {}, "resample: 2 is not supported; only 3 is"),
        ({"do_resize": False}, {}, "do_resize: False is not supported"),
        ({"size": None}, {}, "size: must have height and width"),
        ({"size": {"height": 32}}, {}, "size: must be the sides of a square, got .32, None."),
        ({"size": {"height": 64, "width": 64}}, {}, "size: is 64, but config.json has tiles of 32 pixels"),
        ({"max_patches": 1000}, {}, "max_patches: must be from 1 to 128, got 1000"),
        ({}, {"image_token_id": None}, "image_token_id"),
        ({}, {"model_type": "got_ocr2"}, "image_processor_type: only model_type internvl has it, got 'got_ocr2'"),
        ({}, {"downsample_ratio": 0.3}, "downsample_ratio: must be 1 divided by a whole number, got 0.3"),
        ({}, {"image_seq_length": 256}, "image_seq_length: config.json has 256, but its tiles have 4 tokens"),
        ({}, {"vision_config": {"image_size": 32, "patch_size": [8, 4]}}, "patch_size: must be the sides of a square"),
        ({}, {"vision_config": {"image_size": 32, "patch_size": 12}}, "tiles of 32 pixels are not whole squares"),
    ],
)
def test_nothing_is_assumed_of_a_model(processor, config, said, tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR | processor, CONFIG | config)
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{said}"):
        read_family(folder)


def test_other_processors_are_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR | {"image_processor_type": "MllamaImageProcessor"}, CONFIG)
    with pytest.raises(ValueError, match=r"'MllamaImageProcessor' is not known; .*language_model_only"):
        read_family(folder)


@given(st.integers(1, 20_000), st.integers(1, 768))
@example(9, 9)
@example(1, 1)
@example(768, 32)
def test_frames_are_those_of_transformers(num_frames: int, asked: int) -> None:
    videos = InternVideos(placeholder_id=4, patch=PATCH, side=TILE, num_frames=asked)
    if asked > num_frames:  # which the library refuses: all frames are read
        assert videos.sample(num_frames, 25.0) == list(range(num_frames))
        return
    metadata = VideoMetadata(total_num_frames=num_frames, fps=25.0)
    theirs = object.__new__(INTERN).sample_frames(metadata, num_frames=asked)
    assert videos.sample(num_frames, 25.0) == theirs.tolist()


def test_a_rate_says_how_many_frames_are_read_and_else_there_are_32() -> None:
    videos = InternVideos(placeholder_id=4, patch=PATCH, side=TILE)
    assert len(videos.sample(1000, 25.0)) == 32
    assert videos.sample(5, 25.0) == [0, 1, 2, 3, 4]
    rated = videos.with_settings({"fps": 2})
    metadata = VideoMetadata(total_num_frames=100, fps=25.0)
    processor = object.__new__(INTERN)
    processor.num_frames, processor.initial_shift = None, True
    assert rated.sample(100, 25.0) == processor.sample_frames(metadata, fps=2).tolist()
    assert len(rated.with_settings({"num_frames": 3}).sample(100, 25.0)) == 3
    assert rated.sample(2, 25.0) == [1], "a video that is shorter than a frame's time"
    assert len(rated.sample(100_000, 25.0)) == 768


def frames(family: InternImages, number: int) -> StoredPart:
    grid = (1, SIDE, SIDE)
    item = StoredMedia(bytes(32), grid, family.num_tokens(grid), "f", TILE * TILE * 3)
    return StoredPart((item,) * number, "video", tuple(map(float, range(number))))


def test_images_and_videos_stand_in_the_order_of_a_chat(folder: Path) -> None:
    """Tiles and frames have one token: an image between videos gets its own."""
    family = read_family(folder)
    assert isinstance(family, InternImages)
    text = f"{VIDEO}\nand {IMAGE}\nin {VIDEO}\nsee {IMAGE}"
    parts = [frames(family, 3), stored(family, picture(40, 90)), frames(family, 2), stored(family, picture(30, 30))]
    theirs = library_processor(folder)
    long = text
    for number, part in enumerate(parts):
        kind = "video" if part.kind == "video" else "image"
        given = {"num_patches": [len(part.items)], "pixel_values_videos": [np.zeros((len(part.items), 3, 1, 1))]}
        long = long.replace(VIDEO if kind == "video" else IMAGE, f"[{number}]", 1)
        long = long.replace(f"[{number}]", getattr(theirs, f"replace_{kind}_token")(given, 0).replace(IMAGE, "<row>"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(spell(text, family, parts), add_special_tokens=False).ids
    found, media = expand(ids, family, parts, "prompt")
    assert found.tolist() == tokenizer.encode(long.replace("<row>", IMAGE), add_special_tokens=False).ids
    assert [one.num_bytes for one in media] == [item.num_bytes for part in parts for item in part.items]
    with pytest.raises(
        ParameterError, match=r"the prompt has \d+ times <IMG_CONTEXT> for \d+ items of images and video"
    ):
        expand(ids[:-2], family, parts, "prompt")


def test_settings_of_videos_are_read_from_their_own_file(tmp_path: Path) -> None:
    write(tmp_path, PROCESSOR, CONFIG)
    file = tmp_path / "video_preprocessor_config.json"
    own = {key: PROCESSOR[key] for key in ("size", "image_mean", "image_std")}
    file.write_text(json.dumps(own | {"num_frames": 8, "fps": None, "do_sample_frames": False}))
    family = read_family(tmp_path)
    assert isinstance(family, InternImages)
    assert (family.videos.num_frames, family.videos.fps) == (8, None)
    assert read_family(tmp_path, {"fps": 2}).videos == InternVideos(placeholder_id=4, patch=PATCH, side=TILE, fps=2.0)
    for wrong, said in (
        ({"size": {"height": 64, "width": 64}}, "size: .*64.* is not supported; only .*32"),
        ({"initial_shift": 3}, "initial_shift: 3 is not supported; only True is"),
        ({"image_mean": [0, 0, 0]}, "image_mean: .* is not supported"),
    ):
        file.write_text(json.dumps(own | wrong))
        with pytest.raises(ValueError, match=said):
            read_family(tmp_path)
