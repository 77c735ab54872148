"""Reading InternVL's config: every key, every refusal, the names of both layouts, and what it takes."""

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

from tiny_internvl import write_checkpoint

TEXT = {
    "model_type": "qwen3",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": False,
}
VISION = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "attention_bias": True,
    "use_qk_norm": True,
    "norm_type": "rms_norm",
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "image_size": [112, 112],
    "patch_size": [28, 28],
    "num_channels": 3,
    "use_mask_token": True,
    "use_absolute_position_embeddings": True,
    "use_mean_pooling": False,
}
OUTER = {
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "downsample_ratio": 0.25,
    "projector_hidden_act": "silu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}
REQUIRED = {
    "text_config": ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "vision_config": ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
}
"""Sizes that every published config states: the library's defaults of these are one model's."""
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "gelu": "gelu"}


def config_of(text=None, vision=None, **outer):
    return {
        "architectures": ["InternVLForConditionalGeneration"],
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
    with torch.device("meta"):
        return transformers.InternVLForConditionalGeneration(transformers.InternVLConfig.from_dict(deepcopy(config)))


class AsStored(Shapes):
    """The same tensors by the names that files have."""

    def __init__(self, model):
        super().__init__(model)
        moved = (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
        for old, new in (*moved, ("model.", "")):
            self._shapes = {
                new + name.removeprefix(old) if name.startswith(old) else name: shape
                for name, shape in self._shapes.items()
            }


def assert_alike(config):
    """Every tensor has its place, and what no shape shows is equal."""
    spec, library = parse_spec(config, {}), library_model(config)
    for named in (Shapes, AsStored):
        match(build_model(spec, context_of()), named(library), checkpoint_names(spec))
    text, vision = library.config.text_config, library.config.vision_config
    assert spec.tied_embeddings == library.config.tie_word_embeddings
    assert (spec.norm.eps, spec.max_model_len) == (text.rms_norm_eps, text.max_position_embeddings)
    assert (spec.vision.norm_eps, spec.vision.activation) == (vision.layer_norm_eps, ACTIVATIONS[vision.hidden_act])
    assert spec.vision.projector_activation == ACTIVATIONS[library.config.projector_hidden_act]
    assert spec.vision.rms_norm == (vision.norm_type == "rms_norm")
    assert 1 / spec.vision.merge_size == library.config.downsample_ratio
    assert [spec.vision.side * spec.vision.patch_size] * 2 == list(vision.image_size)
    assert spec.num_position_axes == 1


@pytest.mark.parametrize(
    ("section", "key"),
    [
        *(("", key) for key in OUTER),
        *(("text_config", key) for key in TEXT),
        *(("vision_config", key) for key in VISION),
    ],
)
def test_a_key_left_out_means_what_it_means_to_the_library(section, key):
    config = config_of()
    if key == "tie_word_embeddings" and section:
        config["tie_word_embeddings"] = True  # in memory transformers asks the outer one alone
    if key == "patch_size":  # published tiles are whole squares of published patches
        config["downsample_ratio"] = 0.5
    del (config[section] if section else config)[key]
    if (section, key) == ("", "tie_word_embeddings"):
        del config["text_config"]["tie_word_embeddings"]
    if key not in REQUIRED.get(section, ()):
        assert_alike(config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    assert caught.value.field == f"{section}.{key}"


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"text": {"model_type": "qwen3_moe"}}, "text_config.model_type", "'qwen3_moe' is not supported; supported: q"),
        ({"text": {"model_type": ["qwen3"]}}, "text_config.model_type", "is not supported"),
        ({"text": {"vocab_size": -1}}, "text_config.vocab_size", "positive integer"),
        ({"vision": {"num_attention_heads": 3}}, "vision_config.num_attention_heads", "3 do not divide hidden_size 32"),
        ({"vision": {"num_channels": 4}}, "vision_config.num_channels", "got 4"),
        ({"vision": {"norm_type": "batch"}}, "vision_config.norm_type", "supported: layer_norm, rms_norm"),
        ({"vision": {"norm_type": []}}, "vision_config.norm_type", "supported: layer_norm, rms_norm"),
        ({"vision": {"image_size": [112, 56]}}, "vision_config.image_size", "two equal sides of a square"),
        ({"vision": {"image_size": [112, "x"]}}, "vision_config.image_size", "positive integer"),
        ({"vision": {"image_size": 140}}, "vision_config.image_size", "whole squares of 4 patches of 28 pixels"),
        ({"vision": {"patch_size": [28, 28, 28]}}, "vision_config.patch_size", "two equal sides"),
        ({"vision": {"num_hidden_layers": 5000}}, "vision_config.num_hidden_layers", "at most 4096"),
        ({"vision": {"hidden_size": 1 << 30}}, "vision_config.hidden_size", "at most 1048576"),
        ({"vision": {"patch_size": 1 << 30}}, "vision_config.patch_size", "at most 4096"),
        ({"vision": {"hidden_act": "tanh"}}, "vision_config.hidden_act", "supported: silu"),
        ({"vision": {"use_absolute_position_embeddings": False}}, "vision_config.use_absolute_position_embe", "true"),
        ({"vision": {"use_qk_norm": 1}}, "vision_config.use_qk_norm", "true or false"),
        ({"downsample_ratio": 0.3}, "downsample_ratio", "got 0.3"),
        ({"downsample_ratio": 1 / 3}, "downsample_ratio", "must be 1, 1/2, 1/4 or 1/8, got 0.33"),
        ({"downsample_ratio": 2.0}, "downsample_ratio", "got 2.0"),
        ({"downsample_ratio": 1e-300}, "downsample_ratio", "got 1e-300"),
        ({"projector_hidden_act": "tanh"}, "projector_hidden_act", "supported: silu"),
        ({"vision_feature_layer": -2}, "vision_feature_layer", "-2 is not supported; supported: -1"),
        ({"vision_feature_layer": [-1, 3]}, "vision_feature_layer", "is not supported"),
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy", "supported: default"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(fields, field, message):
    with pytest.raises(ModelError) as caught:
        parse_spec(config_of(**fields), {})
    assert caught.value.field.startswith(field)
    assert message in caught.value.message


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_section_that_is_none_is_refused(section, value):
    with pytest.raises(ModelError, match=f"{section}: config.json must state an object"):
        parse_spec(config_of() | {section: value}, {})


@pytest.mark.parametrize("name", ["InternVLChatModel", "MllamaForConditionalGeneration"])
def test_other_layouts_and_models_of_images_are_refused_by_name(name):
    with pytest.raises(ModelError, match=f"'{name}'.* is not supported; supported: .*InternVLForConditionalGeneration"):
        parse_spec(config_of(architectures=[name]), {})


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "vision", [{}, {"use_qk_norm": False, "norm_type": "layer_norm", "attention_bias": False, "use_mean_pooling": True}]
)
def test_counted_as_built(vision, size):
    whole = parse_spec(config_of(vision=vision), {})
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
    file.write_text(json.dumps({"size": {"height": 112, "width": 112}}))
    assert largest_image(tmp_path, vision, 1000) == 1
    file.write_text(json.dumps({"size": {"height": 112, "width": 448}}))
    with pytest.raises(ModelError, match=r"size\.width: is 448, but config\.json has tiles of 112 pixels"):
        largest_image(tmp_path, vision, 1000)


@pytest.mark.parametrize("size", [{"shortest_edge": 448}, {}, [448, 448]], ids=str)
def test_doctor_refuses_a_size_that_is_no_tiles(size, tmp_path):
    folder = write_checkpoint(tmp_path)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"size": size}))
    needs, refusals = fit(WorkerConfig(model=str(folder)), Place(False, 1 << 34))
    assert needs is None
    assert "preprocessor_config.json" in refusals[0]
    assert "size" in refusals[0]
