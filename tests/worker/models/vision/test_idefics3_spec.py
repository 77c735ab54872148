"""Reading Idefics3's and SmolVLM's config: every key, every refusal, and what it takes."""

import json
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from library_alike import Shapes

sys.path.insert(0, str(Path(__file__).parents[3]))

from tiny_idefics3 import write_checkpoint

TEXT = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
}
VISION = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 8,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu",
    "image_size": 192,
    "patch_size": 16,
    "num_channels": 3,
}
OUTER = {"tie_word_embeddings": True, "dtype": "bfloat16", "scale_factor": 3}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Sizes of the text that every published config states: the library's defaults of these are one model's."""
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
SMOL = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3, "vocab_size": 49280, "max_position_embeddings": 8192, "rope_theta": 100000,
}  # fmt: skip
PUBLISHED = {
    "SmolVLM-256M": (
        SMOL, {"hidden_size": 768, "image_size": 512, "patch_size": 16, "num_attention_heads": 12}, 4, (32, 64)
    ),
    "SmolVLM": (
        {**SMOL, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32},
        {"hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14},
        3,
        (27, 81),
    ),
    "Idefics3-8B": (
        {**SMOL, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128259},
        {"image_size": 364, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14}, 2, (26, 169),
    ),
}  # fmt: skip
"""Sections of the configs of published layouts, their `scale_factor`, and the side and the tokens of a tile."""


def config_of(name="SmolVLM", text=None, vision=None, **outer):
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "text_config": TEXT | (text or {}),
        "vision_config": VISION | (vision or {}),
        **OUTER,
        **outer,
    }


def context_of(size=1):
    group = SingleGroup()
    group.size = size
    return BuildContext(group, torch.device("meta"), torch.float32, everywhere(DenseScheme()))


def library_model(config):
    (architecture,) = config["architectures"]
    made = getattr(transformers, architecture.replace("ForConditionalGeneration", "Config"))
    with torch.device("meta"):
        return getattr(transformers, architecture)(made.from_dict(deepcopy(config)))


def assert_alike(config):
    """Every tensor has its place, and what no shape shows is equal."""
    spec, library = parse_spec(config, {}), library_model(config)
    match(build_model(spec, context_of()), Shapes(library), checkpoint_names(spec))
    text, vision = library.config.text_config, library.config.vision_config
    assert spec.tied_embeddings == library.config.tie_word_embeddings
    assert (spec.norm.eps, spec.max_model_len) == (text.rms_norm_eps, text.max_position_embeddings)
    assert (spec.vision.norm_eps, spec.vision.activation) == (vision.layer_norm_eps, ACTIVATIONS[vision.hidden_act])
    assert (spec.vision.num_heads, spec.vision.merge_size) == (vision.num_attention_heads, library.config.scale_factor)
    assert (spec.vision.tile_pixels, spec.num_position_axes) == (vision.image_size, 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_have_a_place_for_every_tensor(name):
    text, vision, scale, (side, num_tokens) = PUBLISHED[name]
    family = "Idefics3" if name.startswith("I") else "SmolVLM"
    outer = {"architectures": [f"{family}ForConditionalGeneration"], "scale_factor": scale}
    config = {**outer, "text_config": {"intermediate_size": 96, **text}, "vision_config": vision}
    assert_alike(config)
    tower = parse_spec(config, {}).vision
    assert (tower.side, tower.num_rows((1, side, side)), tower.takes_videos) == (side, num_tokens, False)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(("", key) for key in OUTER),
        *(("text_config", key) for key in TEXT),
        *(("vision_config", key) for key in VISION),
    ],
)
def test_a_key_left_out_means_what_it_means_to_the_library(section, key):
    config = config_of(vision={"hidden_act": "gelu_pytorch_tanh"} if key == "hidden_act" else None)
    if key == "patch_size":  # of 32 pixels, of which six are the side of a tile
        config["scale_factor"] = 2
    if key == "image_size":  # 224, which has 14 patches of 16
        config["scale_factor"] = 7
    del (config[section] if section else config)[key]
    if section != "text_config" or key not in REQUIRED:
        assert_alike(config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    assert caught.value.field == f"{section}.{key}"


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"text": {"model_type": "phi3"}}, "text_config.model_type", "'phi3' is not supported; supported: qwen2"),
        ({"text": {"model_type": ["llama"]}}, "text_config.model_type", "is not supported"),
        ({"text": {"vocab_size": -1}}, "text_config.vocab_size", "positive integer"),
        ({"vision": {"model_type": "clip_vision_model"}}, "vision_config.model_type", "supported: idefics3"),
        ({"vision": {"num_attention_heads": 3}}, "vision_config.num_attention_heads", "3 do not divide hidden_size 64"),
        ({"vision": {"num_channels": 4}}, "vision_config.num_channels", "got 4"),
        ({"vision": {"image_size": [192, 192]}}, "vision_config.image_size", "positive integer"),
        ({"vision": {"image_size": 15}}, "vision_config.image_size", "must hold a patch of 16 pixels, got 15"),
        ({"vision": {"image_size": 160}}, "vision_config.image_size", "whole squares of 3 patches of 16 pixels, got"),
        ({"vision": {"hidden_act": "tanh"}}, "vision_config.hidden_act", "supported: silu"),
        ({"scale_factor": 0}, "scale_factor", "positive integer"),
        ({"scale_factor": 1 << 20}, "scale_factor", "at most 32"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
        ({"vision_config": None}, "vision_config", "config.json must state an object"),
        ({"text_config": "x"}, "text_config", "config.json must state an object"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_its_field(fields, field, message):
    with pytest.raises(ModelError) as caught:
        parse_spec(config_of(**fields), {})
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize("size", [1, 2])
def test_counted_as_built(size):
    whole = parse_spec(config_of("Idefics3"), {})
    for spec in (whole, whole.text_alone):
        counted, built = sizes.count(spec, size), build_model(spec, context_of(size))
        assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())


def test_the_tower_counts_in_what_a_model_needs(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), Place(True, 1 << 30))
    built = sum(one.numel() for one in build_model(read_spec(tmp_path), context_of()).parameters())
    assert (refusals, needs.num_parameters, needs.weight_bytes) == ([], built, 2 * built)


def test_the_largest_item_is_a_tile_as_the_processor_makes_them(tmp_path):
    vision = parse_spec(config_of(), {}).vision
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"max_image_size": {"longest_edge": 192}, "size": {"longest_edge": 768}}))
    assert largest_image(tmp_path, vision, 1000) == 16
    file.write_text("{}")
    message = r"max_image_size\.longest_edge: is 364, but config\.json has tiles of 192 pixels"
    with pytest.raises(ModelError, match=message):
        largest_image(tmp_path, vision, 1000)


@pytest.mark.parametrize("size", [{"longest_edge": 448}, {"height": 34}, [34]], ids=str)
def test_doctor_refuses_a_size_that_is_no_tiles(size, tmp_path):
    folder = write_checkpoint(tmp_path)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_image_size": size}))
    needs, refusals = fit(WorkerConfig(model=str(folder)), Place(False, 1 << 34))
    assert needs is None
    assert "preprocessor_config.json" in refusals[0]
    assert "max_image_size" in refusals[0]
