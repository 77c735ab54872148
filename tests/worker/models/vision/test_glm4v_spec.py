"""Reading the configs of GLM-4.1V and GLM-4.5V: every key, every refusal, and what they take."""

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
from quire.worker.layers.rotary import Rotary
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

ROPE = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}
TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "rope_parameters": ROPE,
}
ROUTED = {
    "head_dim": 16,
    "attention_bias": False,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 2,
    "norm_topk_prob": False,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "image_size": 70,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 4,
    "in_channels": 3,
    "attention_bias": True,
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
}
OUTER = {"tie_word_embeddings": True, "dtype": "bfloat16"}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""Sizes of the text that every published config states: the library's defaults of these are one model's."""
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
PUBLISHED_ROPE = {"rope_theta": 10000.0, "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]}}
PUBLISHED = {
    "Glm4v": {
        "hidden_size": 4096, "intermediate_size": 13696, "num_attention_heads": 32, "num_hidden_layers": 40,
        "num_key_value_heads": 2, "vocab_size": 151552, "max_position_embeddings": 65536,
        "partial_rotary_factor": 0.5, **PUBLISHED_ROPE,
    },
    "Glm4vMoe": {
        "hidden_size": 4096, "intermediate_size": 10944, "num_attention_heads": 96, "num_hidden_layers": 3,
        "num_key_value_heads": 8, "vocab_size": 151552, "head_dim": 128, "n_routed_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "partial_rotary_factor": 0.5, **PUBLISHED_ROPE,
    },
}  # fmt: skip
"""Texts of the layouts of GLM-4.1V-9B and, with fewer layers, GLM-4.5V; a tower's sizes are the library's defaults."""


def config_of(name="Glm4v", text=None, vision=None, **outer):
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "text_config": TEXT | (ROUTED if name == "Glm4vMoe" else {}) | (text or {}),
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
    assert spec.layers[0].feed_forward.activation == ACTIVATIONS[text.hidden_act]
    assert (spec.vision.activation, spec.vision.norm_eps) == (ACTIVATIONS[vision.hidden_act], vision.rms_norm_eps)
    assert spec.vision.rope_theta == vision.rope_parameters["rope_theta"]
    assert (spec.vision.merge_size, spec.vision.num_heads) == (vision.spatial_merge_size, vision.num_heads)
    routed = [layer.feed_forward for layer in spec.layers[getattr(text, "first_k_dense_replace", 99) :]]
    for one in routed:
        assert (one.top_k, one.scale) == (text.num_experts_per_tok, text.routed_scaling_factor)
        assert (one.num_groups, one.top_groups, one.renormalize) == (text.n_group, text.topk_group, text.norm_topk_prob)
    positions = torch.tensor([[3, 4, 90], [5, 4, 91], [7, 4, 95]])
    attention = spec.layers[0].attention
    theirs = library.model.language_model.rotary_emb.__class__(text)(torch.zeros(1), positions[:, None])
    half = attention.rope.head_dim // 2
    for own, other in zip(Rotary(attention.rope, torch.device("cpu"))(positions), theirs, strict=True):
        pairs = other[0, :, ::2] if attention.rope.interleaved else other[0, :, :half]
        torch.testing.assert_close(own[:, :half], pairs, rtol=0, atol=1e-6)
    assert attention.rope.interleaved == config["architectures"][0].startswith("Glm4vFor")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_have_a_place_for_every_tensor(name):
    outer = {"architectures": [f"{name}ForConditionalGeneration"], "torch_dtype": "bfloat16"}
    config = {**outer, "text_config": PUBLISHED[name], "vision_config": {}}
    assert_alike(config)
    spec = parse_spec(config, {})
    assert (spec.vision.grid_side, spec.vision.head_dim, spec.vision.merger_size) == (24, 128, 13_696)
    assert (spec.vision.num_rows((1, 24, 26)), spec.vision.takes_videos, spec.num_position_axes) == (156, True, 3)


@pytest.mark.parametrize(
    ("name", "section", "key"),
    [
        *(("Glm4v", "", key) for key in OUTER),
        *(("Glm4v", "text_config", key) for key in TEXT),
        *(("Glm4vMoe", "text_config", key) for key in TEXT | ROUTED),
        *(("Glm4v", "vision_config", key) for key in VISION),
    ],
)
def test_a_key_left_out_means_what_it_means_to_the_library(name, section, key):
    config = config_of(name)
    beside = {
        "out_hidden_size": {"hidden_size": 4096, "num_attention_heads": 256},
        "num_key_value_heads": {"num_attention_heads": 8, "hidden_size": 128},
        "num_experts_per_tok": {"n_routed_experts": 12},
        "n_routed_experts": {"n_group": 2},
        "n_group": {"topk_group": 1},
    }
    config["text_config"] |= beside.get(key, {})
    if "hidden_size" in beside.get(key, {}):
        config["vision_config"]["out_hidden_size"] = config["text_config"]["hidden_size"]
    if key == "num_heads":
        config["vision_config"]["hidden_size"] = 96
    if key == "rope_parameters" and section == "text_config":  # the sections are those of heads of 128, half of which
        config["text_config"] |= {"head_dim": 64 if name == "Glm4v" else 128}
        config["text_config"] |= {"num_attention_heads": 1, "num_key_value_heads": 1}
    del (config[section] if section else config)[key]
    if section != "text_config" or key not in REQUIRED:
        assert_alike(config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    assert caught.value.field == f"{section}.{key}"


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_head_is_tied_where_either_section_says_so(inner, outer):
    config = config_of(text={"tie_word_embeddings": inner}, tie_word_embeddings=outer)
    assert_alike(config)
    assert parse_spec(config, {}).tied_embeddings == (inner or outer)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"text": {"vocab_size": -1}}, "text_config.vocab_size", "positive integer"),
        ({"text": {"rope_parameters": {**ROPE, "mrope_section": [1, 1]}}}, "text_config.mrope_section", "whose sum is"),
        ({"text": {"rope_parameters": {**ROPE, "mrope_section": [4, 4, 4]}}}, "text_config.mrope_section", "sum is 4"),
        ({"text": {"tie_word_embeddings": "no"}}, "text_config.tie_word_embeddings", "true or false"),
        ({"vision": {"num_heads": 3}}, "vision_config.num_heads", "into heads of whole fours"),
        ({"vision": {"in_channels": 4}}, "vision_config.in_channels", "got 4"),
        ({"vision": {"image_size": 13}}, "vision_config.image_size", "must hold a patch of 14 pixels, got 13"),
        ({"vision": {"image_size": [70, 70]}}, "vision_config.image_size", "positive integer"),
        ({"vision": {"out_hidden_size": 32}}, "vision_config.out_hidden_size", "the decoder's hidden_size 64, got 32"),
        ({"vision": {"hidden_act": "tanh"}}, "vision_config.hidden_act", "supported: silu"),
        ({"vision": {"rope_parameters": {"rope_type": "yarn"}}}, "vision_config.rope_parameters", "supported: axial"),
        ({"name": "Glm46V", "text": {"model_type": "llama"}}, "text_config.model_type", "supported: glm4v_text, glm"),
        ({"name": "Glm4vMoe", "text": {"n_group": 4}}, "text_config.n_group", "do not make 4 groups"),
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
@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("bias", [False, True])
def test_counted_as_built(name, size, bias):
    whole = parse_spec(config_of(name, vision={"attention_bias": bias}), {})
    for spec in (whole, whole.text_alone):
        counted, built = sizes.count(spec, size), build_model(spec, context_of(size))
        assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())


@pytest.mark.parametrize("name", ["Glm4v", "Glm46V"])
def test_the_tower_counts_in_what_a_model_needs(name, tmp_path):
    """That of 4.6V is dense here, and its names are those of experts, too."""
    (tmp_path / "config.json").write_text(json.dumps(config_of(name)))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), Place(True, 1 << 30))
    built = sum(one.numel() for one in build_model(read_spec(tmp_path), context_of()).parameters())
    assert (refusals, needs.num_parameters, needs.weight_bytes) == ([], built, 2 * built)


def test_a_dense_model_has_no_place_for_experts():
    names = checkpoint_names(parse_spec(config_of("Glm46V"), {}))
    assert not [name for name in names.linear if "experts." in name and "shared" not in name]
    assert names.targets("model.language_model.layers.1.mlp.experts.gate_up_proj") is None
    assert names.targets("model.language_model.layers.1.mlp.gate_up_proj.weight") is not None


def test_the_largest_item_has_the_pixels_of_both_frames_of_a_patch(tmp_path):
    vision = parse_spec(config_of(vision={"spatial_merge_size": 2}), {}).vision
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"size": {"shortest_edge": 12_544, "longest_edge": 9_633_792}}))
    assert largest_image(tmp_path, vision, 100_000) == 6144
    file.write_text("{}")
    assert largest_image(tmp_path, vision, 100_000) == 7500
