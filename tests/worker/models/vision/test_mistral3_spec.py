"""Reading the configs of Mistral 3 and of Pixtral as a LLaVA: every key, and every refusal."""

import json
import re
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers
from tiny_mistral3 import LONGEST, PROCESSOR, write_checkpoint

from quire.worker.build_context import BuildContext
from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import Linear
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.kinds.normalization import Normalization, largest_image, read_normalization
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from library_alike import Shapes

MISTRAL3, LLAVA = "Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"
TEXT = {
    "model_type": "mistral",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 9,
    "rope_theta": 500.0,
}
VISION = {
    "model_type": "pixtral",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "patch_size": 14,
    "num_channels": 3,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
}
OUTER = {
    MISTRAL3: {
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "vision_feature_layer": -1,
        "spatial_merge_size": 3,
        "multimodal_projector_bias": True,
        "projector_hidden_act": "silu",
    },
    LLAVA: {
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "silu",
    },
}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
"""Sizes of the text that every published config states: the library's defaults of these are one model's."""


def config_of(architecture=MISTRAL3, text=None, vision=None, **outer):
    """Values to state instead; "absent" ones are left out."""

    def stated(fields, others):
        return {name: value for name, value in (fields | (others or {})).items() if value != "absent"}

    return {
        "architectures": [architecture],
        "text_config": stated(TEXT, text),
        "vision_config": stated(VISION, vision),
        **stated(OUTER[architecture], outer),
    }


def spec_of(**fields):
    return parse_spec(config_of(**fields), {})


def context_of(device="meta", size=1):
    group = SingleGroup()
    group.size = size
    return BuildContext(group, torch.device(device), torch.float32, everywhere(DenseScheme()))


def library_model(config):
    kind = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        return kind(kind.config_class.from_dict(deepcopy(config)))


def assert_alike(config):
    """Every tensor has its place, and what no shape shows is equal."""
    spec, library = parse_spec(config, {}), library_model(config)
    match(build_model(spec, context_of()), Shapes(library), checkpoint_names(spec))
    text, vision = library.config.text_config, library.config.vision_config
    attention, feed_forward = spec.layers[0].attention, spec.layers[0].feed_forward
    assert (attention.num_kv_heads, attention.head_dim) == (text.num_key_value_heads, text.head_dim)
    assert attention.window == text.sliding_window
    assert (spec.norm.eps, spec.max_model_len) == (text.rms_norm_eps, text.max_position_embeddings)
    names = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "gelu": "gelu"}
    assert feed_forward.activation == names[text.hidden_act]
    tower = spec.vision
    assert (tower.gate, tower.activation) == (names[vision.hidden_act], names[library.config.projector_hidden_act])
    assert (tower.num_heads, tower.rope_theta) == (vision.num_attention_heads, vision.rope_parameters["rope_theta"])
    assert tower.merge_size == getattr(library.config, "spatial_merge_size", 1)
    assert tower.num_run == range(tower.num_blocks + 1)[library.config.vision_feature_layer]
    assert tower.projector_eps == text.rms_norm_eps


ROWS = [
    *((MISTRAL3, "", key) for key in OUTER[MISTRAL3]),
    *((LLAVA, "", key) for key in OUTER[LLAVA]),
    *((MISTRAL3, "text_config", key) for key in TEXT),
    *((MISTRAL3, "vision_config", key) for key in VISION),
]


@pytest.mark.parametrize(("architecture", "section", "key"), ROWS)
def test_a_key_left_out_means_what_it_means_to_the_library(architecture, section, key):
    config = config_of(architecture)
    if (section, key) == ("text_config", "num_attention_heads"):  # 32 without it
        config["text_config"]["num_key_value_heads"] = 32
    del (config[section] if section else config)[key]
    if key == "vision_feature_select_strategy":
        with pytest.raises(ModelError, match="must be 'full'"):
            parse_spec(config, {})
    elif section == "text_config" and key in REQUIRED:
        with pytest.raises(ModelError) as caught:
            parse_spec(config, {})
        assert caught.value.field == f"{section}.{key}"
    elif key == "tie_word_embeddings":  # the files say whether there is a head
        assert parse_spec(config, {}).tied_embeddings is False
    else:
        assert_alike(config)


@pytest.mark.parametrize("rope", [{"rope_theta": 77.0}, {"rope_parameters": {"rope_theta": 77.0}}])
def test_either_spelling_of_the_towers_base_is_read(rope):
    assert spec_of(vision={"rope_parameters": "absent", **rope}).vision.rope_theta == 77.0


def test_the_text_of_ministral_3_is_read_with_its_own_defaults():
    spec = spec_of(text={"model_type": "ministral3", "sliding_window": "absent", "rope_theta": "absent"})
    (rope,) = {layer.attention.rope for layer in spec.layers}
    assert (rope.type, rope.factor, rope.original_max_position, rope.attention_factor) == ("yarn", 16.0, 16384, 1.0)
    assert rope.query_beta == 0.1
    assert spec.layers[0].attention.window is None


@pytest.mark.parametrize(("length", "beta"), [(0, 0.1), (16385, 0.1), (16384, 0.0), (4096, 0.0)])
def test_queries_grow_only_beyond_the_length_of_the_training(length, beta, tmp_path):
    text = {
        "model_type": "ministral3",
        "hidden_act": "silu",
        "rope_theta": "absent",
        "max_position_embeddings": 1 << 18,
    }
    (tmp_path / "config.json").write_text(json.dumps(config_of(text=text)))
    spec = read_spec(tmp_path, max_model_len=length)
    assert {layer.attention.rope.query_beta for layer in spec.layers} == {beta}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"text": {"model_type": "gemma2"}}, "text_config.model_type", "'gemma2' is not supported; supported: mistral"),
        ({"text": {"model_type": []}}, "text_config.model_type", r"\[\] is not supported"),
        ({"text": {"vocab_size": -1}}, "text_config.vocab_size", "positive integer"),
        (
            {"text": {"model_type": "ministral3", "rope_parameters": {"rope_theta": 9.0, "llama_4_scaling_beta": "x"}}},
            "text_config.llama_4_scaling_beta",
            "positive number",
        ),
        ({"vision": {"model_type": "siglip_vision_model"}}, "vision_config.model_type", "supported: pixtral"),
        ({"vision": {"num_attention_heads": 3}}, "vision_config.num_attention_heads", "3 do not divide hidden_size 64"),
        ({"vision": {"num_attention_heads": 32}}, "vision_config.num_attention_heads", "whole fours"),
        ({"vision": {"head_dim": 32}}, "vision_config.head_dim", "must be hidden_size / num_attention_heads, 16"),
        ({"vision": {"num_channels": 4}}, "vision_config.num_channels", "got 4"),
        ({"vision": {"patch_size": [14, 14]}}, "vision_config.patch_size", "positive integer"),
        ({"vision": {"num_hidden_layers": 5000}}, "vision_config.num_hidden_layers", "at most 4096"),
        ({"vision": {"hidden_size": 1 << 30}}, "vision_config.hidden_size", "at most 1048576"),
        ({"vision": {"patch_size": 1 << 30}}, "vision_config.patch_size", "at most 4096"),
        ({"vision": {"hidden_act": "quick_gelu"}}, "vision_config.hidden_act", "supported: silu"),
        ({"vision": {"rope_parameters": {"rope_type": "yarn"}}}, "vision_config.rope_parameters", "supported: axial"),
        ({"vision_feature_layer": 4}, "vision_feature_layer", r"one place in \[-4, 3\], got 4"),
        ({"vision_feature_layer": [-1, -2]}, "vision_feature_layer", r"one place in \[-4, 3\], got \[-1, -2\]"),
        ({"vision_feature_layer": True}, "vision_feature_layer", "got True"),
        ({"projector_hidden_act": "mish"}, "projector_hidden_act", "'mish' is not supported"),
        ({"spatial_merge_size": 0}, "spatial_merge_size", "positive integer"),
        ({"multimodal_projector_bias": 1}, "multimodal_projector_bias", "true or false"),
        (
            {"architecture": LLAVA, "vision_feature_select_strategy": "default"},
            "vision_feature_select_strategy",
            "full",
        ),
        ({"architecture": LLAVA, "vision": {"model_type": "vit"}}, "vision_config.model_type", "siglip.*, pixtral"),
        ({"architecture": LLAVA, "text": {"model_type": "absent"}}, "text_config.model_type", "'llama' is not supp"),
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


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "fields",
    [{}, {"tie_word_embeddings": True, "multimodal_projector_bias": False, "patch_size": 16}, {"architecture": LLAVA}],
)
def test_counted_as_built(fields, size):
    for spec in (spec_of(**fields), spec_of(**fields).text_alone):
        counted, built = sizes.count(spec, size), build_model(spec, context_of(size=size))
        assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())


def test_linear_layers_are_called_what_the_library_calls_them():
    config = config_of()
    spec = parse_spec(config, {})
    layers = checkpoint_names(spec).linear_layers(len(spec.layers))
    theirs = {name for name, one in library_model(config).named_modules() if isinstance(one, torch.nn.Linear)}
    assert layers.keys() == {name for name in theirs if "vision" not in name and "projector" not in name}
    assert {path for paths in layers.values() for path in paths} == sizes.count(spec, 1).matrices.keys()
    towers = {path for path, one in build_model(spec, context_of()).named_modules()
              if isinstance(one, Linear) and path.startswith("vision.")}  # fmt: skip
    paths = [checkpoint_names(spec).targets(f"{name}.weight").paths[0] for name in theirs - layers.keys()]
    assert {re.sub(r"(?<=qkv|_up)\.\w+(?=\.weight)", "", path) for path in paths} == {f"{one}.weight" for one in towers}


def test_the_tower_counts_in_what_a_model_needs(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), Place(True, 1 << 30))
    built = sum(one.numel() for one in build_model(spec_of(), context_of()).parameters())
    assert (refusals, needs.num_parameters, needs.weight_bytes) == ([], built, 2 * built)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "model")
    return tmp_path / "model"


def test_the_processor_says_how_pixels_are_normalised_and_its_own_patches_mean_nothing(folder):
    vision = read_spec(folder).vision
    meant = Normalization(tuple(PROCESSOR["image_mean"]), tuple(PROCESSOR["image_std"]), 1 / 255)
    for patch in (14, {"height": 14, "width": 14}, None):
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | {"patch_size": patch}))
        assert read_normalization(folder, vision) == meant
    nested = {"image_processor": PROCESSOR | {"image_mean": [0.1, 0.2, 0.3]}, "spatial_merge_size": 2}
    (folder / "processor_config.json").write_text(json.dumps(nested))
    assert read_normalization(folder, vision).mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ({"longest_edge": LONGEST}, 100),
        ({"longest_edge": LONGEST + 1}, 121),
        ({"longest_edge": 15}, 1),
        ({"height": 17, "width": 48}, 6),
        (None, 0),
    ],
)
def test_the_largest_image_is_a_square_of_the_longest_side(folder, size, tokens):
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | {"size": size}))
    assert largest_image(folder, read_spec(folder).vision, 500) == tokens
    assert largest_image(folder, read_spec(folder).vision, 50) == min(tokens, 50)


@pytest.mark.parametrize(
    ("size", "field"), [(1540, "size"), ({"longest_edge": -1}, "size.longest_edge"), ({"height": 9}, "size.width")]
)
def test_a_bound_that_is_none_is_refused(folder, size, field):
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | {"size": size}))
    with pytest.raises(ModelError) as caught:
        largest_image(folder, read_spec(folder).vision, 500)
    assert caught.value.field == f"preprocessor_config.json.{field}"
