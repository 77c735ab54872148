"""Tiles, pixels and tokens of Idefics3 and SmolVLM, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import Image
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from tiny_idefics3 import (
    ALL,
    AROUND,
    IMAGE,
    LONGEST,
    MERGE,
    PATCH,
    PROCESSOR,
    TILE,
    TOKENS,
    library_processor,
    write_tokenizer,
)
from tokenizers import Tokenizer

from quire.frontend.media.decode.decode_child import answer, image_items
from quire.frontend.media.decode.decode_job import DecodeJob, DecodeSettings, DecodeSetup, job_head
from quire.frontend.media.expand import expand, spell
from quire.frontend.media.families.idefics3 import IdeficsImages
from quire.frontend.media.families.table import num_columns, read_family
from quire.frontend.media.store import StoredMedia, StoredPart

CONFIG = {
    "model_type": "smolvlm",
    "image_token_id": 5,
    "scale_factor": MERGE,
    "vision_config": {"image_size": TILE, "patch_size": PATCH},
}
FILES = {"image_processor_type": "SmolVLMImageProcessor", **PROCESSOR}
MEAN, STD = PROCESSOR["image_mean"], PROCESSOR["image_std"]


def family_of(side: int = TILE, longest: int = LONGEST, patch: int = PATCH, merge: int = MERGE, is_cut: bool = True):
    return IdeficsImages(placeholder_id=5, patch=patch, merge=merge, side=side, longest=longest, is_cut=is_cut)


PUBLISHED = [family_of(364, 1456, 14, 2), family_of(384, 1536, 14, 3), family_of(512, 2048, 16, 4)]
"""Of Idefics3-8B, SmolVLM and SmolVLM-256M."""
FAMILIES = [
    *PUBLISHED,
    family_of(),
    family_of(longest=77),
    family_of(longest=TILE),
    family_of(longest=9),
    family_of(is_cut=False),
]
SIDES = st.one_of(st.integers(1, 99), st.integers(1, 12_000), st.integers(1, 30).map(lambda n: 364 * n))


class Sized(Idefics3ImageProcessorPil):
    """The library's rule for whole tiles, without the work."""

    def resize(self, image, size, resample=None, **_):
        return size.height, size.width


def arranged(height: int, width: int, family: IdeficsImages) -> tuple[int, int]:
    """Rows and columns of tiles, by the library."""
    if not family.is_cut:
        return 1, 1
    first = get_resize_output_image_size(np.broadcast_to(np.uint8(0), (3, height, width)), family.longest)
    size = Sized().resize_for_vision_encoder(np.broadcast_to(np.uint8(0), (3, *first)), family.side)
    return size[0] // family.side, size[1] // family.side


@given(SIDES, SIDES)
@example(1, 1)
@example(1, 12_000)
@example(12_000, 1)
@example(364, 364)
@example(1456, 1457)
@example(720, 1280)
@example(634, 633)
def test_tiles_are_as_many_as_those_of_transformers_and_never_more_than_is_said(height: int, width: int) -> None:
    for family in FAMILIES:
        rows, columns = arranged(height, width, family)
        items = family.items(height, width)
        assert len(items) == (1 if rows * columns == 1 else rows * columns + 1) <= family.max_items
        assert num_columns(family, height, width) == columns
        side = family.side // family.patch
        assert {item.grid for item in items} == {(1, side, side)}
        num_tokens = sum(family.num_tokens(item.grid) for item in items)
        assert num_tokens == len(items) * (side // family.merge) ** 2 <= family.max_tokens
        assert len(items) * family.read**2 * 3 <= family.max_bytes


def test_published_models_have_at_most_seventeen_tiles() -> None:
    assert [family.max_tokens for family in PUBLISHED] == [17 * 169, 17 * 81, 17 * 64]
    assert {len(family.items(4000, 4000)) for family in PUBLISHED} == {17}


def picture(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))


def normalised(pixels: bytes, side: int) -> np.ndarray:
    """float32 [3, side, side]: a byte of a channel stands for a number."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    tables = [(scaled - np.float32(mean)) / np.float32(std) for mean, std in zip(MEAN, STD, strict=True)]
    values = np.frombuffer(pixels, np.uint8).reshape(side, side, 3)
    return np.stack([table[values[..., channel]] for channel, table in enumerate(tables)])


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from(FAMILIES[3:]),
    st.sampled_from((Idefics3ImageProcessorPil, SmolVLMImageProcessorPil)),
)
@example(1, 300, FAMILIES[3], SmolVLMImageProcessorPil)
@example(TILE, TILE, FAMILIES[3], SmolVLMImageProcessorPil)
@example(LONGEST, LONGEST, FAMILIES[3], Idefics3ImageProcessorPil)
@examples(60)
def test_pixels_are_those_of_transformers_bit_for_bit(height, width, family, processor) -> None:
    image = picture(height, width)
    found = [normalised(pixels, family.read) for _, pixels in image_items(image, family)]
    settings = {**PROCESSOR, "size": {"longest_edge": family.longest}, "do_image_splitting": family.is_cut}
    theirs = processor(**settings)(images=[image], return_tensors="np", return_row_col_info=True)
    rows, columns = theirs["rows"][0][0], theirs["cols"][0][0]
    assert (len(found), num_columns(family, height, width)) == (rows * columns + 1, columns or 1)
    assert np.array_equal(np.stack(found), theirs["pixel_values"][0, :, :, : family.read, : family.read])


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 2), (2, 1), (3, 4), (7, 7)])
def test_the_text_of_an_image_is_that_of_transformers(rows: int, columns: int) -> None:
    theirs = get_image_prompt_string(rows, columns, 1, AROUND, IMAGE, ALL)
    assert family_of().spelled(rows * columns + 1, columns or 1) == theirs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("idefics3")
    write_tokenizer(made)
    return write(made)


def write(folder: Path, processor: object = FILES, config: object = CONFIG) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": TOKENS}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def stored(family: IdeficsImages, image: Image.Image) -> StoredPart:
    items = [
        StoredMedia(bytes(32), grid, family.num_tokens(grid), "f", len(pixels))
        for grid, pixels in image_items(image, family)
    ]
    return StoredPart(tuple(items), columns=num_columns(family, image.height, image.width))


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("sizes", [[(34, 34)], [(50, 120), (20, 30)], [(96, 64)] * 3, [(136, 130), (9, 136)]])
def test_tokens_of_a_chat_are_those_of_transformers(sizes, is_cut: bool, folder: Path) -> None:
    images = [picture(*size) for size in sizes]
    text = "a quire" + "".join(f"{IMAGE} of pages {number}" for number in range(len(images))) + "<end_of_utterance>"
    family = read_family(folder, {"do_image_splitting": is_cut})
    assert isinstance(family, IdeficsImages)
    parts = [stored(family, image) for image in images]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(spell(text, family, parts), add_special_tokens=False).ids
    found, media = expand(ids, family, parts, "prompt")
    processor = library_processor(folder, do_image_splitting=is_cut)
    theirs = processor(text=[text], images=[images], return_tensors="np")
    assert found.tolist() == theirs["input_ids"][0].tolist()
    assert len(media) == theirs["pixel_values"].shape[1]
    places = [at for one in media for at in range(one.span.start, one.span.stop)]
    assert places == np.flatnonzero(theirs["input_ids"][0] == tokenizer.token_to_id(IMAGE)).tolist()


def test_a_process_that_decodes_says_how_many_tiles_stand_side_by_side(tmp_path: Path) -> None:
    picture(60, 120).save(tmp_path / "image.png")
    job = job_head(DecodeJob(DecodeSettings(family_of(), "")))
    made = answer(job + (tmp_path / "image.png").read_bytes(), DecodeSetup(str(tmp_path / "file"), 1 << 20, 1 << 20))
    assert (len(made.items), made.columns) == (2 * 4 + 1, 4)


def test_settings_are_read_from_the_models_files_and_the_servers_go_before_them(folder: Path, tmp_path: Path) -> None:
    assert read_family(folder) == family_of()
    assert read_family(folder, {"size": {"longest_edge": 77}}) == family_of(longest=77)
    assert read_family(folder, {"do_image_splitting": False}) == family_of(is_cut=False)
    config = {"model_type": "idefics3", "vision_config": {"image_size": 364, "patch_size": 14}}
    files = {"image_processor_type": "Idefics3ImageProcessorFast", "image_mean": MEAN, "image_std": STD}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(files))
    (tmp_path / "config.json").write_text(json.dumps(config))
    meant = IdeficsImages(placeholder_id=128_257, patch=14, merge=2, side=364, longest=1456)
    assert read_family(tmp_path) == meant
    published = read_family(Path(__file__).parents[2] / "published/SmolVLM2-500M")
    assert published == IdeficsImages(placeholder_id=49_190, patch=16, merge=4, side=512, longest=2048)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"max_pixels": 9}, "max_pixels: is no setting of this model's images; it has size, do_image_splitting"),
        ({"size": {"longest_edge": 0}}, "size: longest_edge must be from 1 to 374 pixels, got 0"),
        ({"size": {"longest_edge": 1 << 40}}, "size: longest_edge must be from 1 to 374 pixels"),
        ({"size": {"longest_edge": "9"}}, "Expected `int`, got `str` - at `size`"),
        ({"size": {"height": 34, "width": 34}}, "size: must have longest_edge, got"),
        ({"do_image_splitting": 1}, "Expected `bool`, got `int` - at `do_image_splitting`"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused_by_name(overrides, said, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"^mm_processor_kwargs: .*{said}"):
        read_family(folder, overrides)


@pytest.mark.parametrize("side", [34, 35])
def test_the_longer_side_that_a_refusal_names_is_taken(side: int) -> None:
    most = 11 * side // 2 * 2
    family = family_of(side=side, patch=side // 4, longest=most)
    assert family.max_items == 11**2 + 1
    with pytest.raises(ValueError, match=f"longest_edge must be from 1 to {most} pixels, got {most + 1}"):
        family.with_settings({"size": {"longest_edge": most + 1}})


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({"resample": 3}, {}, "resample: 3 is not supported; only 1 is"),
        ({"do_resize": False}, {}, "do_resize: False is not supported"),
        ({"size": [9]}, {}, "size: must have longest_edge, got .9."),
        ({"max_image_size": {"longest_edge": 64}}, {}, "max_image_size: is 64, but config.json has tiles of 34 pixels"),
        ({"max_image_size": None}, {}, "max_image_size: is 364, but config.json has tiles of 34 pixels"),
        ({}, {"model_type": "idefics2"}, "only model_type idefics3 and smolvlm have it, got 'idefics2'"),
        ({}, {"scale_factor": 3}, "tiles of 34 pixels have no whole squares of 3 patches of 8"),
        ({}, {"scale_factor": 4}, "image_seq_len: processor_config.json has 4, but tiles of config.json have 1 tokens"),
        ({}, {"image_token_id": "<image>"}, "Expected `int`, got `str` - at `image_token_id`"),
        ({}, {"scale_factor": "2"}, "Expected `int`, got `str` - at `scale_factor`"),
        ({}, {"vision_config": {"image_size": TILE, "patch_size": 8.5}}, "at `vision_config.patch_size`"),
        ({}, {"vision_config": {"image_size": TILE, "patch_size": 0}}, "no whole squares of 2 patches of 0"),
        ({}, {"vision_config": None}, "max_image_size: vision_config of config.json must state image_size"),
    ],
)
def test_nothing_is_assumed_of_a_model(processor, config, said, tmp_path: Path) -> None:
    folder = write(tmp_path, FILES | processor, CONFIG | config)
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{said}"):
        read_family(folder)
