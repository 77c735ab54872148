"""Sizes, pixels and tokens of Pixtral and Mistral 3, equal to those of transformers' processors."""

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
from transformers.models.pixtral.image_processing_pil_pixtral import (
    PixtralImageProcessorPil,
    get_resize_output_image_size,
)

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from tiny_mistral3 import BREAK, END, IMAGE, PATCH, PROCESSOR, library_processor, processor_of, write_tokenizer
from tokenizers import Tokenizer

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.expand import expand
from quire.frontend.media.families.pixtral import PixtralImages
from quire.frontend.media.families.table import read_family
from quire.frontend.media.refused import MediaRefused
from quire.frontend.media.store import StoredMedia, StoredPart

CONFIG = {
    "model_type": "mistral3",
    "image_token_index": 5,
    "spatial_merge_size": 2,
    "vision_config": {"model_type": "pixtral", "patch_size": PATCH},
}
MEAN, STD = PROCESSOR["image_mean"], PROCESSOR["image_std"]


def family_of(patch: int, merge: int, height: int, width: int) -> PixtralImages:
    return PixtralImages(
        placeholder_id=5, row_ends=(6, 7), patch=patch, merge=merge, max_height=height, max_width=width
    )


FAMILIES = [
    family_of(14, 2, 1540, 1540),
    family_of(16, 1, 1024, 1024),
    family_of(14, 2, 1000, 1000),
    family_of(8, 2, 160, 160),
    family_of(8, 3, 50, 111),
    family_of(4, 1, 1, 1),
]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 400).map(lambda n: 28 * n))


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 1540)
@example(1, 1541)
@example(1541, 1)
@example(1, 12_000)
@example(28, 28)
@example(29, 57)
@example(1540, 1540)
@example(1541, 1540)
@example(3080, 3080)
@example(4000, 3000)
@example(1540, 12_000)
def test_sizes_are_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    image = np.broadcast_to(np.uint8(0), (3, height, width))
    for family in FAMILIES:
        bounds = (family.max_height, family.max_width)
        size = get_resize_output_image_size(image, bounds, (family.unit, family.unit), "channels_first")
        if not all(size):  # to resize to nothing is an error there
            with pytest.raises(MediaRefused, match=f"one side of {width} x {height} pixels is nothing when"):
                family.views(height, width)
            continue
        (view,) = family.views(height, width)
        assert view.size == view.shape == size
        grid, rows, columns = family.grid(*size), size[0] // family.unit, size[1] // family.unit
        assert grid == (1, size[0] // family.patch, size[1] // family.patch)
        assert (family.num_tokens(grid), family.num_breaks(grid)) == (rows * (columns + 1), rows)
        assert family.num_tokens(grid) <= family.max_tokens
        assert size[0] * size[1] * 3 <= family.max_bytes


def test_the_largest_images_of_published_models_have_as_many_tokens_as_is_said() -> None:
    mistral, pixtral = FAMILIES[:2]
    assert mistral.max_tokens == 55 * 56 == mistral.num_tokens(mistral.grid(1540, 1540))
    assert pixtral.max_tokens == 64 * 65 == pixtral.num_tokens(pixtral.grid(1024, 1024))


def normalised(pixels: bytes, height: int, width: int) -> np.ndarray:
    """float32 [3, height, width]: a byte of a channel stands for a number."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    tables = [(scaled - np.float32(mean)) / np.float32(std) for mean, std in zip(MEAN, STD, strict=True)]
    values = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
    return np.stack([table[values[..., channel]] for channel, table in enumerate(tables)])


def picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))


@given(st.integers(1, 330), st.integers(1, 330), st.sampled_from(FAMILIES[3:5]))
@example(1, 1, FAMILIES[3])
@example(1, 160, FAMILIES[3])
@example(160, 160, FAMILIES[3])
@example(320, 320, FAMILIES[3])
@example(16, 48, FAMILIES[3])
@example(50, 111, FAMILIES[4])
@examples(60)
def test_pixels_are_those_of_transformers_bit_for_bit(height: int, width: int, family: PixtralImages) -> None:
    image, bounds = picture(height, width), {"height": family.max_height, "width": family.max_width}
    processor = PixtralImageProcessorPil(size=bounds, image_mean=MEAN, image_std=STD)
    try:
        ((grid, pixels),) = image_items(image, family)
    except MediaRefused:
        with pytest.raises(ValueError, match=r"height=0|width=0"):
            processor(images=[image], patch_size=family.unit)
        return
    theirs = processor(images=[image], patch_size=family.unit, return_tensors="np")
    size = grid[1] * family.patch, grid[2] * family.patch
    assert theirs["image_sizes"].tolist() == [list(size)]
    assert np.array_equal(normalised(pixels, *size), theirs["pixel_values"][0])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistral3")
    write_tokenizer(folder)
    return write(folder)


def write(folder: Path, image: object = PROCESSOR, config: object = CONFIG, together: object = None) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps(together or processor_of(PATCH, 2)))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes((made / "tokenizer.json").read_bytes())
    return write(tmp_path)


@pytest.mark.parametrize("sizes", [[(16, 16)], [(150, 70), (40, 200)], [(96, 64)] * 3, [(1, 1), (500, 90)]])
def test_tokens_of_a_chat_are_those_of_transformers(sizes: list[tuple[int, int]], made: Path) -> None:
    family, tokenizer = read_family(made), Tokenizer.from_file(str(made / "tokenizer.json"))
    assert isinstance(family, PixtralImages)
    images = [picture(*size) for size in sizes]
    parts, begin = [], "a quire"
    for number, image in enumerate(images):
        ((grid, pixels),) = image_items(image, family)
        tokens, breaks = family.num_tokens(grid), family.num_breaks(grid)
        stored = StoredMedia(bytes([number]) * 32, grid, tokens, "f", len(pixels), num_breaks=breaks)
        parts.append(StoredPart((stored,)))
        begin += IMAGE + ("" if number % 2 else " of pages")
    found, media = expand(tokenizer.encode(begin, add_special_tokens=False).ids, family, parts, "prompt")
    names = SimpleNamespace(**processor_of(PATCH, 2))
    processed = PixtralImageProcessorPil(**PROCESSOR)(images=images, patch_size=2 * PATCH, return_tensors="np")
    spelled = [
        library_processor().replace_image_token(names, {"image_sizes": processed["image_sizes"].tolist()}, number)
        for number in range(len(images))
    ]
    pieces = begin.split(IMAGE)
    whole = "".join(piece + run for piece, run in zip(pieces, [*spelled, ""], strict=True))
    assert found.tolist() == tokenizer.encode(whole, add_special_tokens=False).ids
    ends = tokenizer.token_to_id(BREAK), tokenizer.token_to_id(END)
    for one, run in zip(media, spelled, strict=True):
        tokens = found[one.span.start : one.span.stop].tolist()
        assert tokens == tokenizer.encode(run, add_special_tokens=False).ids
        assert one.span.num_breaks == sum(token in ends for token in tokens)


def test_settings_are_read_from_the_models_files(folder: Path) -> None:
    meant = PixtralImages(placeholder_id=5, row_ends=(6, 7), patch=PATCH, merge=2, max_height=160, max_width=160)
    assert read_family(folder) == meant
    assert read_family(write(folder, {**PROCESSOR, "image_processor_type": "PixtralImageProcessorFast"})) == meant
    nested = {"image_processor": {**PROCESSOR, "size": {"height": 90, "width": 70}}, "spatial_merge_size": 2}
    family = read_family(write(folder, {}, CONFIG, nested))
    assert isinstance(family, PixtralImages)
    assert (family.max_height, family.max_width) == (90, 70)
    llava = {"model_type": "llava", "image_token_index": 5, "vision_config": {"model_type": "pixtral"}}
    family = read_family(write(folder, PROCESSOR, llava, processor_of(16, 1)))
    assert isinstance(family, PixtralImages)
    assert (family.patch, family.merge) == (16, 1)


def test_the_tokenizer_may_lie_in_another_folder(folder: Path, made: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert read_family(folder, {}, made) == read_family(made)


def test_a_servers_bounds_go_before_the_models(folder: Path) -> None:
    for size, bounds in (({"longest_edge": 64}, (64, 64)), ({"height": 30, "width": 60}, (30, 60))):
        family = read_family(folder, {"size": size})
        assert isinstance(family, PixtralImages)
        assert (family.max_height, family.max_width) == bounds


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"max_pixels": 10}, "max_pixels: is no setting of this model's images; the server may set size"),
        ({"size": 448}, "size: must have longest_edge, or height and width, got 448"),
        ({"size": {"shortest_edge": 3, "longest_edge": 9}}, "size: must have longest_edge, or height and width"),
        ({"size": {"height": 3}}, "size: must have longest_edge, or height and width, got {'height': 3}"),
        ({"size": {"longest_edge": -1}}, r"size: sides must be whole numbers from 1 to 1048576, got \(-1, -1\)"),
        ({"size": {"longest_edge": "1"}}, r"size: sides must be whole numbers from 1 to 1048576, got \('1', '1'\)"),
        ({"size": {"longest_edge": 1e400}}, r"size: sides must be whole numbers from 1 to 1048576, got \(inf, inf\)"),
        ({"size": {"height": 9, "width": 1 << 21}}, r"size: sides must be whole numbers .*, got \(9, 2097152\)"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused_by_name(folder: Path, overrides: dict, said: str) -> None:
    with pytest.raises(ValueError, match=f"^mm_processor_kwargs: .*{said}"):
        read_family(folder, overrides)


@pytest.mark.parametrize(
    ("image", "config", "together", "said"),
    [
        ({"size": None}, {}, {}, "size: must have longest_edge"),
        ({"resample": 2}, {}, {}, "resample: 2 is not supported; only 3 is"),
        ({"do_resize": False}, {}, {}, "do_resize: False is not supported"),
        ({"do_center_crop": True}, {}, {}, "do_center_crop: True is not supported; only false is"),
        ({}, {"model_type": "gemma3"}, {}, "only model_type mistral3 and llava have it, got 'gemma3'"),
        ({}, {"vision_config": {"patch_size": 0}}, {"patch_size": 0}, "patch: must be at least 1, got 0"),
        ({}, {"vision_config": None}, {"patch_size": None}, "Expected `int`, got `null` - at `\\$.patch`"),
        ({}, {}, {"patch_size": 14}, "patch_size: is 14 of processor_config.json, but config.json has 8"),
        ({}, {}, {"spatial_merge_size": 1}, "spatial_merge_size: is 1 of processor_config.json, but config.json has 2"),
        ({}, {"image_token_index": 10}, {}, r"image_token_index: 10 of config.json is not that of \[IMG\], 5"),
    ],
)
def test_nothing_is_assumed_of_a_model(folder: Path, image: dict, config: dict, together: dict, said: str) -> None:
    write(folder, PROCESSOR | image, CONFIG | config, processor_of(PATCH, 2) | together)
    with pytest.raises(ValueError, match="preprocessor_config.json: .*" + said):
        read_family(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "tokenizer.json: does not read"),
        ("{", "tokenizer.json: does not read"),
        ('{"added_tokens": [{"id": 5, "content": "[IMG]"}]}', r"tokenizer.json: has no token \[IMG_BREAK\]"),
    ],
)
def test_a_tokenizer_without_row_ends_is_refused(folder: Path, content: str | None, said: str) -> None:
    if content is None:
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=said):
        read_family(folder)
