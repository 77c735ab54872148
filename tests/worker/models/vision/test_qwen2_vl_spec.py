"""Reading the configs of Qwen2-VL and Qwen2.5-VL: every key, where it may stand, and every refusal."""

import json
import re
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

from quire.worker.build_context import BuildContext
from quire.worker.device.parallel import SingleGroup
from quire.worker.layers.linear import Linear
from quire.worker.layers.rotary import Rotary
from quire.worker.models.build import build_model
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.scheme import everywhere
from quire.worker.specs import sizes
from quire.worker.specs.kinds.normalization import largest_image
from quire.worker.specs.registry import checkpoint_names, parse_spec, read_spec
from quire.worker.specs.sighted.qwen2_5_vl import Qwen25VisionSpec
from quire.worker.specs.sighted.qwen2_vl import Qwen2VisionSpec
from quire.worker.weights.load import match
from quire.worker.weights.parts import ModelError

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from library_alike import Shapes

PUBLISHED = Path(__file__).parents[3] / "published"
ROPE = {"rope_type": "default", "rope_theta": 5e4, "mrope_section": [3, 2, 3]}
TEXT = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
    "hidden_act": "gelu_pytorch_tanh",
    "rope_parameters": ROPE,
    "use_sliding_window": True,
    "sliding_window": 9,
    "max_window_layers": 3,
}
COMMON = {
    "depth": 9,
    "num_heads": 2,
    "patch_size": 10,
    "temporal_patch_size": 3,
    "spatial_merge_size": 4,
    "in_channels": 3,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 300.0},
}
VISION = {
    "Qwen2VL": {**COMMON, "embed_dim": 40, "mlp_ratio": 3, "hidden_size": 256, "hidden_act": "silu"},
    "Qwen2_5_VL": {
        **COMMON,
        "hidden_size": 40,
        "intermediate_size": 52,
        "out_hidden_size": 256,
        "hidden_act": "gelu",
        "window_size": 130,
        "fullatt_block_indexes": [0, 2],
    },
}
OUTER = {"tie_word_embeddings": True, "dtype": "bfloat16"}
REQUIRED = {
    "text": ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "vision": ("depth", "num_heads", "embed_dim", "hidden_size", "intermediate_size", "out_hidden_size"),
}
"""Sizes that every published config states: the library's defaults of these are one model's."""
LAYOUTS = ("nested", "flat")


def config_of(family, layout="nested", text=None, vision=None, **outer):
    """Values to state instead; "absent" ones are left out."""

    def stated(fields, others):
        return {name: value for name, value in (fields | (others or {})).items() if value != "absent"}

    words = stated(TEXT, text)
    return {
        "architectures": [f"{family}ForConditionalGeneration"],
        **({"text_config": words} if layout == "nested" else words),
        "vision_config": stated(VISION[family], vision),
        **stated(OUTER, outer),
    }


def context_of(size=1):
    group = SingleGroup()
    group.size = size
    return BuildContext(group, torch.device("meta"), torch.float32, everywhere(DenseScheme()))


def library_model(family, config):
    with torch.device("meta"):
        made = getattr(transformers, f"{family}Config").from_dict(deepcopy(config))
        return getattr(transformers, f"{family}ForConditionalGeneration")(made)


def assert_alike(family, config):
    """Every tensor has its place, and what no shape shows is equal."""
    spec, library = parse_spec(config, {}), library_model(family, config)
    match(build_model(spec, context_of()), Shapes(library), checkpoint_names(spec))
    text, vision = library.config.text_config, library.config.vision_config
    assert spec.tied_embeddings == library.config.tie_word_embeddings
    assert (spec.norm.eps, spec.max_model_len) == (text.rms_norm_eps, text.max_position_embeddings)
    attention, feed_forward = spec.layers[0].attention, spec.layers[0].feed_forward
    assert attention.num_kv_heads == text.num_key_value_heads
    assert [layer.attention.window for layer in spec.layers] == [
        text.sliding_window if kind == "sliding_attention" else None for kind in text.layer_types
    ]
    activations = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "gelu": "gelu", "quick_gelu": "gelu_quick"}
    assert feed_forward.activation == activations[text.hidden_act]
    assert spec.vision.activation == activations[vision.hidden_act]
    assert spec.vision.merge_size == vision.spatial_merge_size
    assert spec.vision.rope_theta == vision.rope_parameters["rope_theta"]
    if family == "Qwen2_5_VL":
        assert spec.vision.whole_blocks == tuple(vision.fullatt_block_indexes)
        assert spec.vision.window == vision.window_size // vision.spatial_merge_size // vision.patch_size
    positions = torch.tensor([[3, 4, 90], [5, 4, 91], [7, 4, 95]])
    theirs = library.model.language_model.rotary_emb.__class__(text)(torch.zeros(1), positions[:, None])
    for own, other in zip(Rotary(attention.rope, torch.device("cpu"))(positions), theirs, strict=True):
        torch.testing.assert_close(torch.cat((own, own), -1), other[0], rtol=0, atol=1e-5)


def test_the_published_configs_read():
    older, newer = (read_spec(PUBLISHED / f"{name}-7B") for name in ("Qwen2-VL", "Qwen2.5-VL"))
    common = {
        "num_blocks": 32,
        "hidden_size": 1280,
        "num_heads": 16,
        "output_size": 3584,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "rope_theta": 10000.0,
    }
    assert older.vision == Qwen2VisionSpec(**common, intermediate_size=5120, activation="gelu_quick")
    assert newer.vision == Qwen25VisionSpec(
        **common, intermediate_size=3420, activation="silu", window=4, whole_blocks=(7, 15, 23, 31)
    )
    for spec, length in ((older, 32768), (newer, 128000)):
        assert (spec.vision.head_dim, spec.vision.row_size) == (80, 3584)
        assert (spec.dtype, spec.eos_token_ids, spec.max_model_len) == ("bfloat16", (151645,), length)
        rope = spec.layers[27].attention.rope
        assert (rope.type, rope.theta) == ("default", 1e6)
        assert rope.pair_axes == (0,) * 16 + (1,) * 24 + (2,) * 24
        assert not spec.tied_embeddings


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", VISION)
def test_all_keys_mean_what_they_mean_to_the_library(family, layout):
    assert_alike(family, config_of(family, layout))


ROWS = [
    *((family, "outer", "tie_word_embeddings") for family in VISION),
    *((family, "text", key) for family in VISION for key in TEXT),
    *((family, "vision", key) for family, fields in VISION.items() for key in fields),
]


@pytest.mark.sampled(48)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("family", "section", "key"), ROWS)
def test_a_key_left_out_means_what_it_means_to_the_library(family, section, key, layout):
    fields = {key: "absent"}
    if key == "rope_parameters" and section == "text":  # the sections are those of a head
        fields |= {"hidden_size": 2048}
    wide = {"out_hidden_size" if family == "Qwen2_5_VL" else "hidden_size": 2048} if "hidden_size" in fields else {}
    if section == "outer":
        config = config_of(family, layout, **fields)
    elif section == "text" and len(fields) > 1:
        config = config_of(family, layout, text=fields, vision=wide)
    else:
        config = config_of(family, layout, **{section: fields})
    if key == "max_window_layers":  # 80 without it: let there be layers above
        (config["text_config"] if layout == "nested" else config)["num_hidden_layers"] = 82
    if key not in REQUIRED.get(section, ()):
        assert_alike(family, config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    named = {"vision": "vision_config.", "text": "text_config." if layout == "nested" else ""}[section]
    assert caught.value.field == f"{named}{key}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"type": "mrope", "mrope_section": [3, 2, 3]}, "rope_theta": 700.0},
        {"rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [3, 2, 3]}, "rope_theta": 7e2},
        {"rope_scaling": {"rope_type": "mrope", "mrope_section": [3, 2, 3]}},
        {"rope_parameters": {"type": "mrope", "mrope_section": [3, 2, 3], "rope_theta": 900.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                          "mrope_section": [3, 2, 3]}, "rope_theta": 700.0},
    ],
)  # fmt: skip
def test_every_spelling_of_rope_means_what_it_means_to_the_library(rope, layout):
    assert_alike("Qwen2_5_VL", config_of("Qwen2_5_VL", layout, text={"rope_parameters": "absent", **rope}))


@pytest.mark.parametrize(
    ("family", "fields", "field", "message"),
    [
        ("Qwen2VL", {"text": {"rope_parameters": {**ROPE, "mrope_section": [4, 4]}}}, "text_config.mrope_section",
         "sum is 8"),
        ("Qwen2VL", {"text": {"rope_parameters": {"type": "su"}}}, "text_config.rope_type", "supported: default"),
        ("Qwen2VL", {"layout": "flat", "text": {"vocab_size": -1}}, "vocab_size", "positive integer"),
        ("Qwen2VL", {"vision": {"num_heads": 3}}, "vision_config.num_heads", "3 do not divide embed_dim 40"),
        ("Qwen2VL", {"vision": {"hidden_size": 64}}, "vision_config.hidden_size", "hidden_size 256, got 64"),
        ("Qwen2VL", {"vision": {"hidden_act": "relu"}}, "vision_config.hidden_act", "quick_gelu"),
        ("Qwen2VL", {"vision": {"mlp_ratio": 0.5}}, "vision_config.mlp_ratio", "positive integer"),
        ("Qwen2VL", {"vision": {"in_chans": 4}}, "vision_config.in_chans", "got 4"),
        ("Qwen2_5_VL", {"vision": {"num_heads": 4}}, "vision_config.num_heads", "whole fours"),
        ("Qwen2_5_VL", {"vision": {"window_size": 39}}, "vision_config.window_size", "of 40 pixels, got 39"),
        ("Qwen2_5_VL", {"vision": {"out_hidden_size": 40}}, "vision_config.out_hidden_size", "256, got 40"),
        ("Qwen2_5_VL", {"vision": {"hidden_act": "quick_gelu"}}, "vision_config.hidden_act", "supported: silu"),
        ("Qwen2_5_VL", {"vision": {"fullatt_block_indexes": [-1]}}, "vision_config.fullatt_block_indexes", "whole"),
        ("Qwen2_5_VL", {"vision": {"depth": 5000}}, "vision_config.depth", "at most 4096"),
        ("Qwen2_5_VL", {"vision": {"patch_size": 1 << 30}}, "vision_config.patch_size", "at most 4096"),
        ("Qwen2VL", {"vision": {"embed_dim": 1 << 30}}, "vision_config.embed_dim", "at most 1048576"),
        ("Qwen2VL", {"vision": {"mlp_ratio": 1 << 30}}, "vision_config.mlp_ratio", "at most 32"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_its_field(family, fields, field, message):
    with pytest.raises(ModelError, match=message) as caught:
        parse_spec(config_of(family, **fields), {})
    assert caught.value.field == field


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("family", VISION)
def test_counted_as_built(family, size):
    spec = parse_spec(config_of(family, tie_word_embeddings=False), {})
    for one in (spec, spec.text_alone):
        counted, built = sizes.count(one, size), build_model(one, context_of(size))
        assert counted.num_parameters + counted.padding == sum(part.numel() for part in built.parameters())


@pytest.mark.parametrize("family", VISION)
def test_linear_layers_are_called_what_files_call_them(family):
    """As they are published; the library calls the decoder's by another name in memory, which files may have, too."""
    config = config_of(family, tie_word_embeddings=False)
    spec = parse_spec(config, {})
    names = checkpoint_names(spec)
    theirs = {name for name, one in library_model(family, config).named_modules() if isinstance(one, torch.nn.Linear)}
    text = {name for name in theirs if "visual" not in name}
    layers = names.linear_layers(len(spec.layers))
    assert layers.keys() == {name.replace("language_model.", "") for name in text}
    assert set(names.layers(text).values()) == set(layers.values())
    towers = {f"{path}.weight" for path, one in build_model(spec, context_of()).named_modules()
              if isinstance(one, Linear) and path.startswith("vision.")}  # fmt: skip
    for written in (theirs - text, {name.removeprefix("model.") for name in theirs - text}):
        named = {names.targets(f"{name}.weight").paths[0] for name in written}
        assert {re.sub(r"(gate_up|qkv)\.\w+\.weight", r"\1.weight", path) for path in named} == towers


def test_the_largest_image_is_of_as_many_tokens_as_the_processor_leaves(seeing_checkpoint, tmp_path):
    folder = seeing_checkpoint("Qwen2_5_VL")
    vision = read_spec(folder).vision
    assert largest_image(folder, vision, 1024) == 64
    stated = json.loads((folder / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated | {"max_pixels": 100 * 28 * 28 + 27}))
    assert largest_image(tmp_path, vision, 1024) == 100
