"""Images and prompts of PaliGemma, equal to those of transformers' processors."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))  # collected in importlib mode, yet they share modules

from tiny_paligemma import BOS, IMAGE, PATCH, PROCESSOR, SIDE, TOKENS, library_processor, write_tokenizer

from quire.frontend.chat.load_template import load_template
from quire.frontend.media.decode.decode_child import image_items
from quire.frontend.media.families.gemma3 import PaliGemmaImages
from quire.frontend.media.families.table import read_family, template_of

CONFIG = {
    "model_type": "paligemma",
    "image_token_index": 2,
    "vision_config": {"image_size": SIDE, "patch_size": PATCH},
}


def write(folder: Path, processor: object, config: object) -> Path:
    write_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("size", [(12, 12), (1, 1), (300, 7), (40, 90)])
def test_pixels_are_those_of_transformers_bit_for_bit(size, tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR, CONFIG)
    family = read_family(folder)
    assert isinstance(family, PaliGemmaImages)
    image = Image.fromarray(np.random.default_rng(size).integers(0, 256, (*size, 3), np.uint8))
    ((grid, pixels),) = image_items(image, family)
    assert (grid, family.num_tokens(grid), family.max_tokens) == ((1, 3, 3), TOKENS, TOKENS)
    theirs = library_processor(folder).image_processor(images=[image], return_tensors="np")["pixel_values"][0]
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    table = (scaled - np.float32(0.5)) / np.float32(0.5)
    assert np.array_equal(table[np.frombuffer(pixels, np.uint8).reshape(SIDE, SIDE, 3)].transpose(2, 0, 1), theirs)


def test_its_files_have_no_template_and_one_is_there(tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR, CONFIG)
    family = read_family(folder)
    assert family is not None
    assert load_template(str(folder), "", ()) is None
    template = load_template(str(folder), "", (BOS, IMAGE), otherwise=template_of(family))
    assert template is not None
    assert template.sources == {"default": template_of(family)}
    (folder / "chat_template.jinja").write_text("its own")
    own = load_template(str(folder), "", (), otherwise=template_of(family))
    assert own is not None
    assert own.sources == {"default": "its own"}


@pytest.mark.parametrize(
    ("processor", "config", "said"),
    [
        ({"resample": 2}, {}, "resample: 2 is not supported; only 3 is"),
        ({"do_convert_rgb": False}, {}, "do_convert_rgb: False is not supported; only True is"),
        ({"size": {"height": 24, "width": 24}}, {}, "size: is .24, 24., but config.json has images of 12 pixels"),
        ({"size": None}, {}, "size: must have height and width"),
        ({"image_seq_length": 256}, {}, "image_seq_length: is 256, but config.json has images of 9 tokens"),
        ({}, {"model_type": "siglip"}, "image_processor_type: 'SiglipImageProcessor' is not known"),
        ({}, {"image_token_index": "x"}, "image_token_index: config.json must state whole numbers"),
    ],
    ids=str,
)
def test_nothing_is_assumed_of_a_model(processor, config, said, tmp_path: Path) -> None:
    folder = write(tmp_path, PROCESSOR | processor, CONFIG | config)
    with pytest.raises(ValueError, match=f"preprocessor_config.json: .*{said}"):
        read_family(folder)


def test_a_server_may_set_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mm_processor_kwargs: size: is no setting of this model's images"):
        read_family(write(tmp_path, PROCESSOR, CONFIG), {"size": {"height": 9}})
