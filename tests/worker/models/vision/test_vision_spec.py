"""Reading the configs of a model that reads images: every key, and every refusal."""

import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import Linear
from quire.worker.layers.rotary import Rotary
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.kinds.normalization import Normalization, read_normalization
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.specs.sighted.qwen3_vl import Qwen3VisionSpec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from library_alike import Shapes

PUBLISHED = Path(__file__).parents[3] / "published/Qwen3-VL-8B"
ARCHITECTURE = "Qwen3VLForConditionalGeneration"
ROPE = {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [3, 2, 3], "mrope_interleaved": True}
TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": True,
    "rope_parameters": ROPE,
}
VISION = {
    "depth": 26,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 14,
    "temporal_patch_size": 3,
    "spatial_merge_size": 4,
    "in_channels": 3,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [0, 2],
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
}
OUTER = {"tie_word_embeddings": True, "dtype": "bfloat16"}
REQUIRED = {
    "text_config": ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "vision_config": ("depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size"),
}
"""Sizes that every published config states: the library's defaults of these are one model's."""


def config_of(text=None, vision=None, **outer):
    """Values to state instead; "absent" ones are left out."""

    def stated(fields, others):
        return {name: value for name, value in (fields | (others or {})).items() if value != "absent"}

    return {
        "architectures": [ARCHITECTURE],
        "text_config": stated(TEXT, text),
        "vision_config": stated(VISION, vision),
        **stated(OUTER, outer),
    }


def spec_of(**fields):
    return parse_spec(config_of(**fields), {})


def context_of(device="meta", size=1):
    group = SingleGroup()
    group.size = size
    return BuildContext(group, torch.device(device), torch.float32, everywhere(DenseScheme()))


def library_model(config):
    with torch.device("meta"):
        return transformers.Qwen3VLForConditionalGeneration(transformers.Qwen3VLConfig.from_dict(deepcopy(config)))


def assert_alike(config):
    """Every tensor has its place, and what no shape shows is equal."""
    spec, library = parse_spec(config, {}), library_model(config)
    match(build_model(spec, context_of()), Shapes(library), checkpoint_names(spec))
    text, vision = library.config.text_config, library.config.vision_config
    assert spec.tied_embeddings == library.config.tie_word_embeddings
    assert (spec.norm.eps, spec.max_model_len) == (text.rms_norm_eps, text.max_position_embeddings)
    attention, feed_forward = spec.layers[0].attention, spec.layers[0].feed_forward
    assert (attention.num_kv_heads, attention.head_dim) == (text.num_key_value_heads, text.head_dim)
    activations = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
    assert feed_forward.activation == activations[text.hidden_act]
    assert spec.vision.activation == activations[vision.hidden_act]
    assert spec.vision.deepstack == tuple(vision.deepstack_visual_indexes)
    assert spec.vision.merge_size == vision.spatial_merge_size
    assert spec.vision.rope_theta == vision.rope_parameters["rope_theta"]
    positions = torch.tensor([[3, 4, 90], [5, 4, 91], [7, 4, 95]])
    theirs = library.model.language_model.rotary_emb.__class__(text)(torch.zeros(1), positions[:, None])
    for own, other in zip(Rotary(attention.rope, torch.device("cpu"))(positions), theirs, strict=True):
        torch.testing.assert_close(torch.cat((own, own), -1), other[0], rtol=0, atol=1e-5)


def test_the_published_config_reads():
    spec = read_spec(PUBLISHED)
    assert spec.vision == Qwen3VisionSpec(
        num_blocks=27,
        hidden_size=1152,
        intermediate_size=4304,
        num_heads=16,
        output_size=4096,
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        grid_side=48,
        deepstack=(8, 16, 24),
        activation="gelu_tanh",
        rope_theta=10000.0,
    )
    assert (spec.vision.head_dim, spec.vision.row_size) == (72, 4 * 4096)
    assert (spec.dtype, spec.eos_token_ids, spec.max_model_len) == ("bfloat16", (151645,), 262144)
    axes = spec.layers[35].attention.rope.pair_axes
    assert [axes.count(axis) for axis in range(3)] == [24, 20, 20]
    assert axes[:4] + axes[-4:] == (0, 1, 2, 0, 0, 0, 0, 0)
    assert spec.num_position_axes == 3


@pytest.mark.parametrize(
    ("section", "key"),
    [("", "tie_word_embeddings"), *(("text_config", key) for key in TEXT), *(("vision_config", key) for key in VISION)],
)
def test_a_key_left_out_means_what_it_means_to_the_library(section, key):
    config = config_of()
    if key in ("head_dim", "rope_parameters") and section == "text_config":  # the sections are those of a head
        config["text_config"] |= {"head_dim": 128, "rope_parameters": {**ROPE, "mrope_section": [24, 20, 20]}}
    del (config[section] if section else config)[key]
    if key not in REQUIRED.get(section, ()):
        assert_alike(config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    assert caught.value.field == f"{section}.{key}"


@pytest.mark.parametrize("key", ["mrope_section", "mrope_interleaved", "rope_theta", "rope_type"])
@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
def test_every_spelling_of_rope_without_each_of_its_keys_means_the_same(key, spelling):
    rope = {**ROPE, "mrope_section": [24, 20, 20]}
    del rope[key]
    assert_alike(config_of({"head_dim": 128, "rope_parameters": "absent", spelling: rope}))


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"text": {"rope_parameters": {**ROPE, "mrope_section": [4, 4]}}}, "text_config.mrope_section", "sum is 8"),
        ({"text": {"rope_parameters": {**ROPE, "mrope_section": [3, 2, 4]}}}, "text_config.mrope_section", "sum is 8"),
        ({"text": {"rope_parameters": {**ROPE, "mrope_section": "3"}}}, "text_config.mrope_section", "a list of whole"),
        ({"text": {"rope_parameters": {**ROPE, "mrope_interleaved": 1}}}, "text_config.mrope_interleaved", "true or"),
        (
            {"text": {"head_dim": 1 << 14, "rope_parameters": {**ROPE, "mrope_section": [1 << 13, 0, 0]}}},
            "text_config.mrope_section",
            "up to 4096",
        ),
        ({"text": {"vocab_size": -1}}, "text_config.vocab_size", "positive integer"),
        ({"vision": {"num_heads": 3}}, "vision_config.num_heads", "3 do not divide hidden_size 32"),
        ({"vision": {"num_heads": 16}}, "vision_config.num_heads", "whole fours"),
        ({"vision": {"in_channels": 4}}, "vision_config.in_channels", "got 4"),
        ({"vision": {"num_position_embeddings": 35}}, "vision_config.num_position_embeddings", "square grid, got 35"),
        ({"vision": {"out_hidden_size": 32}}, "vision_config.out_hidden_size", "hidden_size 64, got 32"),
        ({"vision": {"deepstack_visual_indexes": [2, 0]}}, "vision_config.deepstack_visual_indexes", "in order"),
        ({"vision": {"deepstack_visual_indexes": [0, 0]}}, "vision_config.deepstack_visual_indexes", "each once"),
        ({"vision": {"deepstack_visual_indexes": [26]}}, "vision_config.deepstack_visual_indexes", "of the 26"),
        ({"vision": {"deepstack_visual_indexes": [*range(5)]}}, "vision_config.deepstack_visual_indexes", "4 layers"),
        ({"vision": {"deepstack_visual_indexes": [True]}}, "vision_config.deepstack_visual_indexes", "whole numbers"),
        ({"vision": {"patch_size": [16, 16]}}, "vision_config.patch_size", "positive integer"),
        ({"vision": {"depth": 5000}}, "vision_config.depth", "at most 4096"),
        ({"vision": {"spatial_merge_size": 1 << 30}}, "vision_config.spatial_merge_size", "at most 32"),
        ({"vision": {"num_position_embeddings": 1 << 30}}, "vision_config.num_position_embeddings", "at most"),
        ({"vision": {"rope_parameters": {"rope_type": "yarn"}}}, "vision_config.rope_parameters", "supported: axial"),
        ({"vision": {"hidden_act": "relu"}}, "vision_config.hidden_act", "supported: silu, .*quick_gelu"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(fields, field, message):
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_section_that_is_none_is_refused(section, value):
    with pytest.raises(ModelError, match=f"{section}: config.json must state an object"):
        parse_spec(config_of() | {section: value}, {})


@pytest.mark.parametrize(
    "architecture",
    ["Qwen4VLForConditionalGeneration", "MllamaForConditionalGeneration", "KimiVLForConditionalGeneration"],
)
def test_other_models_of_images_are_refused_by_name(architecture):
    with pytest.raises(ModelError, match=f"'{architecture}'.* is not supported; supported: .*{ARCHITECTURE}"):
        parse_spec(config_of() | {"architectures": [architecture]}, {})


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "fields", [{}, {"tie_word_embeddings": False, "vision": {"deepstack_visual_indexes": [], "patch_size": 16}}]
)
def test_counted_as_built(fields, size):
    for spec in (spec_of(**fields), spec_of(**fields).text_alone):
        counted, built = sizes.count(spec, size), build_model(spec, context_of(size=size))
        assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())


def test_linear_layers_are_called_what_the_library_calls_them():
    config = config_of(tie_word_embeddings=False)
    spec = parse_spec(config, {})
    layers = checkpoint_names(spec).linear_layers(len(spec.layers))
    theirs = {name for name, one in library_model(config).named_modules() if isinstance(one, torch.nn.Linear)}
    assert layers.keys() == {name for name in theirs if "visual" not in name}
    assert {path for paths in layers.values() for path in paths} == sizes.count(spec, 1).matrices.keys()
    towers = {f"{path}.weight" for path, one in build_model(spec, context_of()).named_modules()
              if isinstance(one, Linear) and path.startswith("vision.")}  # fmt: skip
    named = {checkpoint_names(spec).targets(f"{name}.weight").paths[0] for name in theirs if "visual" in name}
    assert {path.replace("qkv.q.weight", "qkv.weight") for path in named} == towers


def test_the_tower_counts_in_what_a_model_needs(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), Place(True, 1 << 30))
    built = sum(one.numel() for one in build_model(spec_of(), context_of()).parameters())
    assert (refusals, needs.num_parameters, needs.weight_bytes) == ([], built, 2 * built)


@pytest.fixture
def folder(seeing_checkpoint, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(seeing_checkpoint(), copy)
    return copy


def stated(folder, name="preprocessor_config.json"):
    return json.loads((folder / name).read_text())


def test_the_newer_file_of_the_processor_comes_first(folder):
    vision = read_spec(folder).vision
    older = Normalization((0.5, 0.4, 0.6), (0.5, 0.6, 0.7), 1 / 255)
    assert read_normalization(folder, vision) == older
    newer = folder / "processor_config.json"
    newer.write_text("{}")
    assert read_normalization(folder, vision) == older
    newer.write_text(json.dumps({"image_processor": {**stated(folder), "image_mean": [1, 2, 3]}}))
    assert read_normalization(folder, vision).mean == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_mean": None}, "image_mean: must be 3 numbers, one for each channel, got None"),
        ({"image_mean": [0.5, 0.5]}, "image_mean: must be 3 numbers"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std: must be positive"),
        ({"image_std": [0.5, "0.5", 0.5]}, "image_std: must be 3 numbers"),
        ({"image_std": [0.5, 10**400, 0.5]}, "image_std: must be 3 numbers"),
        ({"do_normalize": False}, "do_normalize: must be true"),
        ({"do_rescale": False}, "do_rescale: must be true"),
        ({"rescale_factor": -1}, "rescale_factor: config.json must state a positive number"),
        ({"patch_size": 14}, "patch_size: is 14, but config.json has 16"),
        ({"merge_size": 1}, "merge_size: is 1, but config.json has 2"),
    ],
)
def test_an_image_processor_that_the_tower_does_not_fit_is_refused(fields, message, folder):
    (folder / "preprocessor_config.json").write_text(json.dumps(stated(folder) | fields))
    with pytest.raises(ModelError, match=f"preprocessor_config.json.{message}"):
        read_normalization(folder, read_spec(folder).vision)


def test_a_model_whose_pixels_nothing_normalises_is_not_loaded(folder, load):
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"not found in .*: it says how images are normalised; .*language_model_only"):
        load(folder)
