"""Reading LLaVA-OneVision's config: every key, every refusal, the names of both layouts, and what it takes."""

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

from tiny_onevision import write_checkpoint

TEXT = {
    "model_type": "qwen2",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": False,
}
VISION = {
    "model_type": "siglip_vision_model",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 384,
    "patch_size": 14,
    "layer_norm_eps": 1e-3,
    "hidden_act": "gelu",
    "vision_use_head": False,
}
OUTER = {
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "image_grid_pinpoints": [[384, 768], [768, 384]],
    "vision_aspect_ratio": "anyres_max_4",
    "multimodal_projector_bias": False,
    "projector_hidden_act": "silu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}
REQUIRED = {
    "text_config": ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "vision_config": (
        "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "image_size", "patch_size"
    ),
}  # fmt: skip
"""Sizes that every published config states: the library's defaults of these are one model's."""
ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "gelu": "gelu"}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 384,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 26,
    "patch_size": 14,
    "vision_use_head": False,
}
PUBLISHED = {
    "0.5B": {
        "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "vocab_size": 152000, "tie_word_embeddings": True,
    },
    "7B": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "vocab_size": 152128,
    },
}  # fmt: skip
"""Text of the layouts in which the models are published, which all have that tower; their configs state little else."""


def config_of(text=None, vision=None, **outer):
    return {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
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
        made = transformers.LlavaOnevisionConfig.from_dict(deepcopy(config))
        return transformers.LlavaOnevisionForConditionalGeneration(made)


class AsStored(Shapes):
    """The same tensors by the names that files on the hub have."""

    def __init__(self, model):
        super().__init__(model)
        moved = (
            ("model.language_model.", "language_model.model."),
            ("lm_head.", "language_model.lm_head."),
            ("model.vision_tower.", "vision_tower.vision_model."),
            ("model.", ""),
        )
        found = {}
        for name, shape in self._shapes.items():
            old, new = next((one for one in moved if name.startswith(one[0])), ("", ""))
            found[new + name.removeprefix(old)] = shape
        self._shapes = found


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
    side = vision.image_size
    pinpoints = [[rows * side, columns * side] for rows, columns in spec.vision.arrangements]
    assert pinpoints == library.config.image_grid_pinpoints
    assert f"anyres_max_{spec.vision.max_tiles}" == library.config.vision_aspect_ratio
    assert spec.vision.side == vision.image_size // vision.patch_size
    assert spec.num_position_axes == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layouts_have_a_place_for_every_tensor(name):
    outer = {"architectures": ["LlavaOnevisionForConditionalGeneration"], "tie_word_embeddings": False}
    text = {"model_type": "qwen2", "rope_theta": 1000000.0, **PUBLISHED[name]}
    config = {**outer, "text_config": text, "vision_config": SIGLIP, "torch_dtype": "float16"}
    assert_alike(config)
    vision = parse_spec(config, {}).vision
    assert (vision.head_dim, vision.side, vision.pooled_side, vision.takes_videos) == (72, 27, 14, True)


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
    del (config[section] if section else config)[key]
    if key not in REQUIRED.get(section, ()):
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
        ({"text": {"model_type": "llama"}}, "text_config.model_type", "'llama' is not supported; supported: qwen2"),
        ({"text": {"vocab_size": -1}}, "text_config.vocab_size", "positive integer"),
        ({"text": {"tie_word_embeddings": "no"}}, "text_config.tie_word_embeddings", "true or false"),
        ({"vision": {"model_type": "clip_vision_model"}}, "vision_config.model_type", "supported: siglip_vision_model"),
        ({"vision": {"num_attention_heads": 3}}, "vision_config.num_attention_heads", "3 do not divide hidden_size 32"),
        ({"vision": {"num_channels": 4}}, "vision_config.num_channels", "got 4"),
        ({"vision": {"image_size": 13}}, "vision_config.image_size", "must hold a patch of 14 pixels, got 13"),
        ({"vision": {"image_size": [384, 384]}}, "vision_config.image_size", "positive integer"),
        ({"vision": {"num_hidden_layers": 5000}}, "vision_config.num_hidden_layers", "at most 4096"),
        ({"vision": {"hidden_size": 1 << 30}}, "vision_config.hidden_size", "at most 1048576"),
        ({"vision": {"patch_size": 1 << 30}}, "vision_config.patch_size", "at most 4096"),
        ({"vision": {"hidden_act": "tanh"}}, "vision_config.hidden_act", "supported: silu"),
        ({"vision_feature_layer": -2}, "vision_feature_layer", "-2 is not supported; supported: -1"),
        ({"vision_feature_layer": [-1, 3]}, "vision_feature_layer", "is not supported"),
        ({"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy", "supported: full"),
        ({"vision_aspect_ratio": "pad"}, "vision_aspect_ratio", "must be anyres_max_N, N from 1 to 128, got 'pad'"),
        ({"vision_aspect_ratio": "anyres_max_0"}, "vision_aspect_ratio", "must be anyres_max_N"),
        ({"vision_aspect_ratio": None}, "vision_aspect_ratio", "must be anyres_max_N"),
        ({"image_grid_pinpoints": []}, "image_grid_pinpoints", "must be a list of heights and widths"),
        ({"image_grid_pinpoints": [[384, 400]]}, "image_grid_pinpoints", "in whole tiles of 384 pixels"),
        ({"image_grid_pinpoints": [[384, 0]]}, "image_grid_pinpoints", "in whole tiles of 384 pixels"),
        ({"image_grid_pinpoints": [[384]]}, "image_grid_pinpoints", "heights and widths"),
        ({"image_grid_pinpoints": [[384, 384 * 129]]}, "image_grid_pinpoints", "128 of them at most"),
        ({"image_grid_pinpoints": None, "vision": {"image_size": 28}}, "image_grid_pinpoints", "for tiles of 28 pix"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_its_field(fields, field, message):
    with pytest.raises(ModelError) as caught:
        parse_spec(config_of(**fields), {})
    assert caught.value.field == field
    assert message in caught.value.message


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_section_that_is_none_is_refused(section, value):
    with pytest.raises(ModelError, match=f"{section}: config.json must state an object"):
        parse_spec(config_of() | {section: value}, {})


SIDE = 27
GRIDS = [
    ((1, SIDE, SIDE), 729, ""),
    ((1, SIDE, SIDE, 0), 196, ""),
    ((1, SIDE, SIDE, 1), 197, ""),
    ((1, 3 * SIDE, SIDE, 2, 27, 54, 27, 54), 729 + 27 * 55, ""),
    ((1, 3 * SIDE, SIDE, 1, 54, 3, 20, 1), 729 + 20 * 2, ""),
    ((1, 3 * SIDE, SIDE, 1, 0, 27, 0, 27), 729, ""),
    ((2, SIDE, SIDE), 0, "the frames of an item must be 1, got"),
    ((1, SIDE, 2 * SIDE), 0, "every item has 27 rows and columns of patches"),
    ((1, SIDE, SIDE, 2), 0, "0 or 1"),
    ((1, SIDE, SIDE, 1, 1), 0, "0 or 1"),
    ((1, SIDE, SIDE, 1, 27, 27, 27, 27), 0, "whole tiles of 27 patches a side, two at least"),
    ((1, 3 * SIDE - 1, SIDE, 2, 27, 54, 27, 54), 0, "whole tiles"),
    ((1, 3 * SIDE, SIDE, 0, 27, 54, 27, 54), 0, "whole tiles"),
    ((1, 4 * SIDE, SIDE, 2, 27, 54, 27, 54), 0, "in the middle of whole rows of tiles"),
    ((1, 3 * SIDE, SIDE, 2, 29, 54, 29, 54), 0, "in the middle of whole rows of tiles"),
    ((1, 3 * SIDE, SIDE, 2, 26, 54, 26, 54), 0, "in the middle of whole rows of tiles"),
    ((1, 3 * SIDE, SIDE, 2, 27, 54, 28, 54), 0, "reduced to lines of its rows"),
    ((1, 3 * SIDE, SIDE, 2, 27, 54, 0, 54), 0, "reduced to lines of its rows"),
]


@pytest.mark.parametrize(("grid", "num_rows", "refused"), GRIDS, ids=str)
def test_an_item_has_as_many_rows_as_its_grid_says(grid, num_rows, refused):
    vision = parse_spec(config_of(), {}).vision
    if not refused:
        assert vision.num_rows(grid) == num_rows
        return
    with pytest.raises(ValueError, match=refused):
        vision.num_rows(grid)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("outer", [{}, {"multimodal_projector_bias": True}])
def test_counted_as_built(outer, size):
    whole = parse_spec(config_of(**outer), {})
    for spec in (whole, whole.text_alone):
        counted, built = sizes.count(spec, size), build_model(spec, context_of(size))
        assert counted.num_parameters + counted.padding == sum(one.numel() for one in built.parameters())


def test_the_tower_counts_in_what_a_model_needs(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of()))
    needs, refusals = fit(WorkerConfig(model=str(tmp_path)), Place(True, 1 << 30))
    built = sum(one.numel() for one in build_model(read_spec(tmp_path), context_of()).parameters())
    assert (refusals, needs.num_parameters, needs.weight_bytes) == ([], built, 2 * built)


def test_the_largest_item_has_the_largest_grid_as_far_as_it_is_not_reduced(tmp_path):
    vision = parse_spec(config_of(), {}).vision
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"size": {"height": 384, "width": 384}}))
    assert largest_image(tmp_path, vision, 10_000) == 729 + 2 * 729 + 54
    assert vision.patches_of(1) == 3 * 729
    assert vision.patches_of(0) == 0
    large = parse_spec(config_of(image_grid_pinpoints=[[2304, 2304]]), {}).vision
    assert largest_image(tmp_path, large, 10_000) == 729 + int(1.21 * 4 * 729) + 1 + 6 * 27
    file.write_text(json.dumps({"size": {"height": 384, "width": 448}}))
    with pytest.raises(ModelError, match=r"size\.width: is 448, but config\.json has tiles of 384 pixels"):
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
