"""Pixels and tokens of LLaVA 1.5, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from parts.examples import examples
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from tiny_llava_next import PATCH, SQUARE, TILE

from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.families.llava.llava import LlavaImages
from quire.frontend.media.families.table import read_family
from quire.frontend.media.refused import MediaRefused

CONFIG = {
    "model_type": "llava",
    "image_token_index": 3,
    "vision_config": {"image_size": TILE, "patch_size": PATCH},
}
CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "do_center_crop": True,
    "crop_size": SQUARE,
    "size": {"shortest_edge": TILE},
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
WHOLE = {
    "image_processor_type": "SiglipImageProcessor",
    "size": SQUARE,
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def write(folder: Path, processor: object, config: object) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def family_of(cuts: bool) -> LlavaImages:
    return LlavaImages(placeholder_id=3, patch=PATCH, merge=1, side=TILE, cuts=cuts)


@given(st.integers(1, 150), st.integers(1, 150), st.booleans())
@example(1, 1, True)
@example(3, 150, True)
@example(29, 28, True)
@examples(60)
def test_pixels_are_those_of_transformers_bit_for_bit(height: int, width: int, cuts: bool) -> None:
    """Of the patches that the tower reads: the pixels that are left are read by nobody."""
    family = family_of(cuts)
    image = Image.fromarray(np.random.default_rng((height, width)).integers(0, 256, (height, width, 3), np.uint8))
    if cuts and max(height, width) > 50 * min(height, width):
        with pytest.raises(MediaRefused, match=f"{width} x {height} pixels is more than 50 times the other"):
            family.items(height, width)
        return
    ((grid, pixels),) = image_items(image, family)
    assert (grid, family.num_tokens(grid), family.max_tokens) == ((1, 3, 3), 9, 9)
    alike = CLIPImageProcessorPil if height % 2 else LlavaImageProcessorPil
    kind, stated = (alike, CLIP) if cuts else (SiglipImageProcessorPil, WHOLE)
    settings = {name: value for name, value in stated.items() if name != "image_processor_type"}
    theirs = kind(**settings)(images=[image], return_tensors="np")["pixel_values"][0]
    table = ((np.arange(256) * (1 / 255)).astype(np.float32) - np.float32(0.5)) / np.float32(0.5)
    read = family.read
    assert np.array_equal(
        table[np.frombuffer(pixels, np.uint8).reshape(read, read, 3)].transpose(2, 0, 1), theirs[:, :read, :read]
    )


def test_settings_are_read_from_the_models_files(tmp_path: Path) -> None:
    assert read_family(write(tmp_path, CLIP, CONFIG)) == family_of(True)
    alike = CLIP | {"image_processor_type": "LlavaImageProcessorFast", "do_pad": False}
    assert read_family(write(tmp_path, alike, CONFIG)) == family_of(True)
    assert read_family(write(tmp_path, WHOLE, CONFIG)) == family_of(False)
    with pytest.raises(ValueError, match="mm_processor_kwargs: size: is no setting of this model's images"):
        read_family(tmp_path, {"size": 9})


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({"resample": 2}, {}, "resample: 2 is not supported; only 3 is"),
        ({"do_pad": True}, {}, "do_pad: True is not supported; only false is"),
        ({"size": {"shortest_edge": 30}}, {}, "size: is .* but config.json has images of 28 pixels"),
        ({"size": SQUARE}, {}, "size: is .* but config.json has images of 28 pixels"),
        ({"crop_size": {"height": 30, "width": 28}}, {}, "crop_size: is .* but config.json has images of 28 pixels"),
        ({"do_center_crop": False}, {}, "size: is .* but config.json has images of 28 pixels"),
        ({}, {"model_type": "clip"}, "image_processor_type: 'CLIPImageProcessor' is not known"),
        ({}, {"image_token_index": "x"}, "image_token_index"),
        ({}, {"vision_config": {"image_size": 28}}, "patch_size: vision_config of config.json must state pixels"),
        ({}, {"vision_config": {"image_size": 28, "patch_size": 29}}, "patch_size: must be from 1 to the 28 pixels"),
    ],
    ids=str,
)
def test_nothing_is_assumed_of_a_model(processor, config, said, tmp_path: Path) -> None:
    folder = write(tmp_path, CLIP | processor, CONFIG | config)
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{said}"):
        read_family(folder)
