"""Reading LLaVA-NeXT's config: published files, keys left out, every refusal, the names of both layouts."""

import json
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

from quire.worker.config import WorkerConfig
from quire.worker.models.build import build_model
from quire.worker.specs import sizes
from quire.worker.specs.fit import fit
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from library_alike import Shapes
from test_onevision_spec import AsStored, context_of
from tiny_llava_next import KINDS, PINPOINTS, TEXT, VISION, write_checkpoint

L14 = {
    "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
    "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
}  # fmt: skip
PUBLISHED = {
    "v1.6-mistral-7b": {
        "image_token_index": 32000,
        "text_config": {
            "model_type": "mistral", "intermediate_size": 14336, "max_position_embeddings": 32768,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
            "vocab_size": 32064,
        },
        "vision_config": L14,
    },
    "v1.6-vicuna-7b": {
        "image_token_index": 32000,
        "text_config": {
            "model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32064,
        },
        "vision_config": L14,
    },
    "llava-1.5-7b": {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": 32000,
        "text_config": {
            "model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32064,
        },
        "vision_config": L14,
    },
    "granite-vision-3.2-2b": {
        "image_token_index": 49155,
        "image_grid_pinpoints": [[384, 384 * n] for n in range(1, 11)],
        "text_config": {
            "model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_hidden_layers": 40, "max_position_embeddings": 131072,
            "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
            "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_theta": 300000, "vocab_size": 49156,
        },
        "tie_word_embeddings": True,
        "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304,
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
        },
        "vision_feature_layer": [-24, -20, -12, -1],
        "vision_feature_select_strategy": "full",
    },
}  # fmt: skip
"""What the published files state of sizes; the first three leave the rest to the library."""
COUNTED = {"v1.6-mistral-7b": 7_566_747_648 - 2 * 1024}
"""Parameters that the hub counts of the files, without the tower's last norm, which nobody reads."""


def config_of(kind="mistral", text=None, vision=None, **outer):
    made = KINDS[kind]
    return {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "image_grid_pinpoints": PINPOINTS,
        "text_config": {**TEXT, **made.text, **(text or {})},
        "vision_config": {**VISION, **made.vision, **(vision or {})},
        **made.outer,
        **outer,
    }


def assert_alike(config):
    """Every tensor has its place, and what no shape shows is equal."""
    spec = parse_spec(config, {})
    with torch.device("meta"):
        (architecture,) = config["architectures"]
        made = getattr(transformers, architecture.replace("ForConditionalGeneration", "Config"))
        library = getattr(transformers, architecture)(made.from_dict(deepcopy(config)))
    for named in (Shapes, AsStored):
        match(build_model(spec, context_of()), named(library), checkpoint_names(spec))
    text, vision = library.config.text_config, library.config.vision_config
    assert spec.tied_embeddings == library.config.tie_word_embeddings
    assert (spec.norm.eps, spec.max_model_len) == (text.rms_norm_eps, text.max_position_embeddings)
    activations = {"quick_gelu": "gelu_quick", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
    assert (spec.vision.norm_eps, spec.vision.activation) == (vision.layer_norm_eps, activations[vision.hidden_act])
    layers = library.config.vision_feature_layer
    places = layers if isinstance(layers, list) else [layers]
    assert spec.vision.features == tuple(one % (vision.num_hidden_layers + 1) for one in places)
    if architecture == "LlavaForConditionalGeneration":
        return spec
    pinpoints = [[rows * vision.image_size, columns * vision.image_size] for rows, columns in spec.vision.arrangements]
    assert pinpoints == library.config.image_grid_pinpoints
    return spec


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_have_a_place_for_every_tensor(name):
    spec = assert_alike({"architectures": ["LlavaNextForConditionalGeneration"], **PUBLISHED[name]})
    built = build_model(spec, context_of())
    counted = sizes.count(spec, 1)
    assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())
    assert counted.num_parameters == COUNTED.get(name, counted.num_parameters)


@pytest.mark.parametrize(
    "key", ["vision_config", "image_grid_pinpoints", "vision_feature_layer", "tie_word_embeddings"]
)
def test_a_key_left_out_means_what_it_means_to_the_library(key):
    config = config_of(vision={"image_size": 336, "patch_size": 14}, tie_word_embeddings=True)
    config["image_grid_pinpoints"] = [[336, 672]]
    config["vision_feature_layer"] = -1
    del config[key]
    assert_alike(config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2])
def test_counted_as_built(kind, size):
    spec = parse_spec(config_of(kind), {})
    counted, built = sizes.count(spec, size), build_model(spec, context_of(size))
    assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"text": {"model_type": "gemma"}}, "text_config.model_type", "supported: llama, mistral, qwen2, granite"),
        (
            {"vision": {"model_type": "vit"}},
            "vision_config.model_type",
            "supported: clip_vision_model, siglip_vision_model",
        ),
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy", "must be 'default' for 'clip_"),
        ({"kind": "granite", "vision_feature_select_strategy": "default"}, "vision_feature_select_strategy", "'full'"),
        ({"vision_feature_layer": 5}, "vision_feature_layer", "must be places in [-5, 4], got 5"),
        ({"vision_feature_layer": []}, "vision_feature_layer", "must be places in [-5, 4]"),
        ({"vision_feature_layer": True}, "vision_feature_layer", "must be places in [-5, 4], got True"),
        ({"image_grid_pinpoints": [[28, 30]]}, "image_grid_pinpoints", "in whole tiles of 28 pixels"),
        ({"projector_hidden_act": "tanh"}, "projector_hidden_act", "supported: silu"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_its_field(fields, field, message):
    with pytest.raises(ModelError) as caught:
        parse_spec(config_of(**fields), {})
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize("size", [{"shortest_edge": 28}, {"height": 28, "width": 28}])
def test_the_largest_item_has_the_largest_grid(size, tmp_path):
    vision = parse_spec(config_of(image_grid_pinpoints=[[28, 28], [56, 112]]), {}).vision
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"size": size}))
    assert largest_image(tmp_path, vision, 10_000) == 9 + 6 * (12 + 1)
    file.write_text(json.dumps({"size": dict.fromkeys(size, 30)}))
    with pytest.raises(ModelError, match=r"size\.\w+: is 30, but config\.json has tiles of 28 pixels"):
        largest_image(tmp_path, vision, 1000)


def test_doctor_counts_what_is_built(tmp_path):
    folder = write_checkpoint(tmp_path)
    needs, refusals = fit(WorkerConfig(model=str(folder)), Place(False, 1 << 34))
    built = sum(one.numel() for one in build_model(read_spec(folder), context_of()).parameters())
    assert (refusals, needs.num_parameters) == ([], built)
