"""Tiles, pixels and tokens of LLaVA-NeXT, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import Image
from tokenizers import Tokenizer
from transformers import LlavaNextProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_llava_next import IMAGE, KINDS, PATCH, PINPOINTS, PROCESSOR, TILE, library_processor, write_tokenizer

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.expand import expand
from quire.frontend.media.families.llava.llava_next import DEFAULT_PINPOINTS, LlavaNextImages
from quire.frontend.media.families.table import of_request, read_family, video_rules
from quire.frontend.media.store import StoredMedia, StoredPart

CONFIG = {
    "model_type": "llava_next",
    "image_token_index": 3,
    "image_grid_pinpoints": PINPOINTS,
    "vision_config": {"model_type": "clip_vision_model", "image_size": TILE, "patch_size": PATCH},
}
STATED = PROCESSOR | KINDS["mistral"].processor
MEAN, STD = PROCESSOR["image_mean"], PROCESSOR["image_std"]


def family_of(patch: int, side: int, pinpoints: list[list[int]]) -> LlavaNextImages:
    sizes = tuple((height, width) for height, width in pinpoints)
    return LlavaNextImages(placeholder_id=3, patch=patch, side=side, pinpoints=sizes)


class Oracle:
    """The library's processors for a family."""

    def __init__(self, family: LlavaNextImages) -> None:
        square = {"height": family.side, "width": family.side}
        self.images = LlavaNextImageProcessorPil(
            size={"shortest_edge": family.side},
            crop_size=square,
            image_grid_pinpoints=[list(size) for size in family.pinpoints],
            image_mean=MEAN,
            image_std=STD,
        )
        self._texts = object.__new__(LlavaNextProcessor)
        self._texts.image_processor, self._texts.patch_size = self.images, family.patch
        self._texts.num_additional_image_tokens = 0
        self.side = family.side

    def num_tokens(self, height: int, width: int) -> int:
        return self._texts._get_number_of_features(height, width, self.side, self.side)


GRANITE = [[384 * rows, 384 * columns] for rows in range(1, 11) for columns in range(1, 11) if rows * columns <= 10]
FAMILIES = [
    family_of(14, 336, DEFAULT_PINPOINTS),
    family_of(14, 384, GRANITE),
    family_of(PATCH, TILE, PINPOINTS),
    family_of(16, 32, [[32, 64], [64, 32], [64, 64]]),
]
ORACLES = [(family, Oracle(family)) for family in FAMILIES]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 30).map(lambda n: 336 * n))


@given(SIDES, SIDES)
@example(1, 1)
@example(336, 336)
@example(12_000, 1200)
@example(672, 1008)
@example(720, 1280)
def test_tokens_are_as_many_as_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    for family, oracle in ORACLES:
        if max(height, width) > 100 * min(height, width):  # the library finds no grid for a line
            continue
        (item,) = family.items(height, width)
        assert family.num_tokens(item.grid) == oracle.num_tokens(height, width) <= family.max_tokens
        assert family.num_breaks(item.grid) == 0
        assert len(item.views) * (family.tile * family.patch) ** 2 * 3 <= family.max_bytes


def picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))


def normalised(pixels: bytes, side: int) -> np.ndarray:
    """float32 [tiles, 3, side, side]: a byte of a channel stands for a number."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    tables = [(scaled - np.float32(mean)) / np.float32(std) for mean, std in zip(MEAN, STD, strict=True)]
    values = np.frombuffer(pixels, np.uint8).reshape(-1, side, side, 3)
    return np.stack([table[values[..., channel]] for channel, table in enumerate(tables)], axis=1)


@given(st.integers(1, 150), st.integers(1, 150), st.sampled_from(ORACLES[2:]))
@example(1, 1, ORACLES[2])
@example(56, 84, ORACLES[2])
@example(112, 112, ORACLES[2])
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


@pytest.mark.parametrize("sizes", [[(28, 28)], [(50, 120), (20, 30)], [(112, 100)] * 3], ids=str)
def test_tokens_of_a_chat_are_those_of_transformers(sizes, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    folder = write(tmp_path, STATED, CONFIG, {"patch_size": PATCH})
    images = [picture(*size) for size in sizes]
    text = f"user: {IMAGE * len(images)}\na quire of pages"
    family = read_family(folder)
    assert isinstance(family, LlavaNextImages)
    parts = [
        StoredPart(
            tuple(
                StoredMedia(bytes(32), grid, family.num_tokens(grid), "f", len(pixels))
                for grid, pixels in image_items(image, family)
            )
        )
        for image in images
    ]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found, media = expand(tokenizer.encode(text, add_special_tokens=False).ids, family, parts, "prompt")
    theirs = library_processor(folder)(text=[text], images=images, add_special_tokens=False, return_tensors="np")
    assert found.tolist() == theirs["input_ids"][0].tolist()
    places = [at for one in media for at in range(one.span.start, one.span.stop)]
    assert places == np.flatnonzero(theirs["input_ids"][0] == 3).tolist()


@pytest.mark.parametrize("size", [{"shortest_edge": TILE}, {"height": TILE, "width": TILE}])
def test_settings_are_read_from_the_models_files_and_the_servers_go_before_them(size, tmp_path: Path) -> None:
    folder = write(tmp_path, STATED | {"size": size}, CONFIG)
    assert read_family(folder) == FAMILIES[2]
    family = read_family(folder, {"image_grid_pinpoints": [[TILE, TILE]]})
    assert isinstance(family, LlavaNextImages)
    assert (family.pinpoints, video_rules(family)) == (((TILE, TILE),), None)
    with pytest.raises(ValueError, match="fps: is no setting of this model; leave it out"):
        of_request(family, {"fps": 1}, "image")
    published = STATED | {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    del published["image_grid_pinpoints"]
    assert read_family(write(tmp_path, published, {"model_type": "llava_next", "image_token_index": 3})) == FAMILIES[0]


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({"resample": 2}, {}, "resample: 2 is not supported; only 3 is"),
        ({"size": None}, {}, "size: is None, but config.json has tiles of 28 pixels"),
        ({"size": {"shortest_edge": 30}}, {}, "size: is .* but config.json has tiles of 28 pixels"),
        ({"size": {"longest_edge": 28}}, {}, "size: is .* but config.json has tiles of 28 pixels"),
        ({"crop_size": {"height": 28, "width": 56}}, {}, "crop_size: is .* but config.json has tiles of 28 pixels"),
        ({"image_grid_pinpoints": [[28, 28]]}, {}, "image_grid_pinpoints: is another one in config.json"),
        ({}, {"image_token_index": "<image>"}, "token"),
        ({}, {"model_type": "llava"}, "only model_type llava_next has it, got 'llava'"),
        ({}, {"vision_config": {"image_size": 28}}, "patch_size: vision_config of config.json must state pixels"),
        ({}, {"vision_config": 7}, "vision_config: config.json must have a section, got 7"),
    ],
    ids=str,
)
def test_nothing_is_assumed_of_a_model(processor, config, said, tmp_path: Path) -> None:
    folder = write(tmp_path, STATED | processor, CONFIG | config)
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{said}"):
        read_family(folder)


def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"patch_size: is 9 of processor_config\.json, but config\.json has 8"):
        read_family(write(tmp_path, STATED, CONFIG, {"patch_size": 9}))
