"""The plan of a quantized checkpoint: what config.json and headers state together."""

import json
import sys
from pathlib import Path

import pytest
from transformers.quantizers.quantizers_utils import should_convert_module

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from stated import (
    BLOCKS,
    F8,
    F8_TOKEN,
    FP8,
    INT8,
    INT8_TOKEN,
    MODEL,
    compressed,
    headers,
    of_blocks,
    of_rows,
    plan,
)

from quire.worker.config import WorkerConfig
from quire.worker.quant.form import DENSE, F8Blocks, F8Rows, Int8Rows
from quire.worker.quant.plan import NO_PLAN
from quire.worker.specs.quantized import read_plan
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

ATTENTION = {"q": "qkv.q", "k": "qkv.k", "v": "qkv.v", "o": "output"}


@pytest.mark.parametrize(
    ("quantization", "stored", "form"),
    [
        (FP8, headers(), F8Rows()),
        ({"quant_method": "fp8"}, headers(), F8Rows()),
        ({**FP8, "fmt": "e4m3"}, headers(scale=lambda o, i: ("weight_scale_inv", "F32", (1,))), F8Rows()),
        (BLOCKS, headers(scale=of_blocks), F8Blocks()),
        (
            {**BLOCKS, "scale_fmt": "ue8m0"},
            headers(scale=lambda o, i: ("scale", "F8_E8M0", of_blocks(o, i)[2])),
            F8Blocks(),
        ),
        ({"quant_method": "fbgemm_fp8"}, headers(scale=of_rows), F8Rows()),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, headers(scale=of_rows), F8Rows(bound=1200.0)),
        (compressed(), headers(scale=of_rows), F8Rows()),
        (compressed({**F8, "symmetric": None}, {**F8_TOKEN, "symmetric": None}), headers(scale=of_rows), F8Rows()),
        (compressed(inputs=None), headers(scale=of_rows), F8Rows("none")),
        (compressed({**F8, "strategy": "tensor"}, {**F8_TOKEN, "strategy": "tensor"}), headers(), F8Rows()),
        (compressed(format="naive-quantized"), headers(scale=of_rows), F8Rows()),
        (compressed(format="mixed-precision", group={"format": "float-quantized"}), headers(scale=of_rows), F8Rows()),
        (compressed(INT8, INT8_TOKEN), headers("I8", of_rows), Int8Rows()),
        (compressed({**INT8, "strategy": "tensor"}, INT8_TOKEN), headers("I8"), Int8Rows()),
        (
            compressed(
                {**F8, "strategy": "block", "block_structure": [128, 128]},
                {**F8_TOKEN, "strategy": "group", "group_size": 128},
            ),
            headers(scale=lambda o, i: ("weight_scale", "F32", of_blocks(o, i)[2])),
            F8Blocks(),
        ),
        (
            compressed({**F8, "strategy": "block", "block_structure": "128x128"}, None),
            headers(scale=lambda o, i: ("weight_scale", "F32", of_blocks(o, i)[2])),
            F8Blocks("none"),
        ),
    ],
)
def test_a_layer_has_the_form_that_is_stated_with_the_files_and_without(tmp_path, quantization, stored, form):
    read = [plan(tmp_path, quantization), plan(tmp_path, quantization, stored)]
    for one in read:
        assert one.forms == dict.fromkeys(
            (f"blocks.{n}.{path}" for n in range(2) for path in (
                *(f"attention.{name}" for name in ATTENTION.values()), "mlp.gate_up.gate", "mlp.gate_up.up", "mlp.down",
            )),
            form,
        )  # fmt: skip
        assert one.form("head") == DENSE
        assert one.kinds == (form,)
    assert not read[0].stored
    assert len(read[1].stored) == 14


def static(scale):
    """Headers with a scale of activations for each layer."""
    found = headers()
    for name in [one for one in found if one.endswith("_proj.weight")]:
        found[f"{name.removesuffix('weight')}{scale}"] = ("F32", ())
    return found


@pytest.mark.parametrize("scale", ["input_scale", "activation_scale"])
def test_static_activations_have_scales_in_the_file(tmp_path, scale):
    read = plan(tmp_path, {**FP8, "activation_scheme": "static"}, static(scale))
    assert read.kinds == (F8Rows("static"),)
    assert {layer.input_scale.rpartition(".")[2] for layer in read.stored.values()} == {scale}


@pytest.mark.parametrize(
    ("quantization", "dense"),
    [
        ({**FP8, "modules_to_not_convert": ["model.layers.1.self_attn.k_proj"]}, {"blocks.1.attention.qkv.k"}),
        ({**FP8, "ignored_layers": ["model.layers.0.mlp.up_proj"]}, {"blocks.0.mlp.gate_up.up"}),
        (
            {**FP8, "modules_to_not_convert": ["model.layers.1.mlp"]},
            {"blocks.1.mlp.gate_up.gate", "blocks.1.mlp.gate_up.up", "blocks.1.mlp.down"},
        ),
        ({**FP8, "modules_to_not_convert": ["down_proj"]}, {"blocks.0.mlp.down", "blocks.1.mlp.down"}),
        ({**FP8, "modules_to_not_convert": ["layers.1", "mlp", "model.layers.12"]}, set()),
        (compressed(ignore=["model.layers.0.self_attn.o_proj", "lm_head"]), {"blocks.0.attention.output"}),
        (compressed(ignore=["re:.*lm_head", r"re:.*layers\.1\.self_attn\.[qv]_proj"]), {
            "blocks.1.attention.qkv.q", "blocks.1.attention.qkv.v",
        }),
        (compressed(targets=[r"re:.*layers\.(0|1)\.(self_attn|mlp)\.[^d]"]), {
            "blocks.0.mlp.down", "blocks.1.mlp.down",
        }),
        (compressed(targets=["model.layers.0.mlp.down_proj"]), None),
    ],
)  # fmt: skip
def test_layers_stay_as_they_are_by_the_names_they_had_before_they_were_merged(tmp_path, quantization, dense):
    every = plan(tmp_path, FP8).forms.keys()
    assert {*every} - {*plan(tmp_path, quantization).forms} == (
        {*every} - {"blocks.0.mlp.down"} if dense is None else dense
    )


MODULES = {
    **{f"blocks.{n}.attention.{path}": f"model.layers.{n}.self_attn.{name}_proj"
       for n in range(2) for name, path in ATTENTION.items()},
    **{f"blocks.{n}.mlp.{path}": f"model.layers.{n}.mlp.{path.rpartition('.')[2]}_proj"
       for n in range(2) for path in ("gate_up.gate", "gate_up.up", "down")},
}  # fmt: skip


@pytest.mark.parametrize(
    "skipped", [["model.layers.1.mlp.up"], ["wn_proj", "lm_head"], ["model.layers.1.self", "p_proj"], ["model.lay"]]
)
def test_of_modules_that_begin_or_end_like_a_name_the_file_decides(tmp_path, skipped):
    """Without files they are skipped, as in transformers, which writes the files; other tools take whole names."""
    stated, held = {**FP8, "modules_to_not_convert": skipped}, headers()
    quantized = {path for path, name in MODULES.items() if should_convert_module(name, skipped)}
    assert quantized < MODULES.keys()
    assert plan(tmp_path, stated).forms.keys() == quantized
    (tmp_path / "files").mkdir()
    assert plan(tmp_path / "files", stated, held).forms.keys() == MODULES.keys()
    for path in MODULES.keys() - quantized:
        del held[f"{MODULES[path]}.weight_scale"]
        held[f"{MODULES[path]}.weight"] = ("BF16", held[f"{MODULES[path]}.weight"][1])
    assert plan(tmp_path / "files", stated, held).forms.keys() == quantized


def test_the_group_that_names_a_layer_itself_wins_over_patterns_and_these_over_the_class(tmp_path):
    stated = compressed()
    groups = {
        "all": stated["config_groups"]["group_0"],
        "some": {"targets": ["re:.*o_proj"], "weights": F8, "input_activations": None},
        "one": {"targets": ["model.layers.1.self_attn.o_proj"], "weights": INT8, "input_activations": INT8_TOKEN,
                "format": "int-quantized"},
    }  # fmt: skip
    for order in (list(groups), list(reversed(groups))):
        read = plan(tmp_path, {**stated, "config_groups": {name: groups[name] for name in order}})
        assert read.form("blocks.0.attention.qkv.q") == F8Rows()
        assert read.form("blocks.0.attention.output") == F8Rows("none")
        assert read.form("blocks.1.attention.output") == Int8Rows()


def test_of_two_patterns_the_first_by_its_letters_wins_and_of_two_equal_targets_the_last(tmp_path):
    """As the format's own tool orders them, wherever the groups stand."""
    stated = compressed()
    groups = {
        "wide": {"targets": ["re:.*mlp.*", "re:.*zz.*"], "weights": F8, "input_activations": F8_TOKEN},
        "narrow": {"targets": ["re:zz", "re:.*down_proj"], "weights": F8, "input_activations": None},
    }
    for order in (list(groups), list(reversed(groups))):
        read = plan(tmp_path, {**stated, "config_groups": {name: groups[name] for name in order}})
        assert read.form("blocks.0.mlp.gate_up.up") == F8Rows()
        assert read.form("blocks.0.mlp.down") == F8Rows("none")
    groups["wide"]["targets"], groups["narrow"]["targets"] = ["re:m.*mlp.*", "re:.*mlp.*"], ["re:[m].*mlp.*"]
    assert plan(tmp_path, {**stated, "config_groups": groups}).form("blocks.0.mlp.down") == F8Rows()
    twice = {"first": stated["config_groups"]["group_0"], "last": {**groups["narrow"], "targets": ["Linear"]}}
    assert plan(tmp_path, {**stated, "config_groups": twice}).kinds == (F8Rows("none"),)


def test_a_head_is_quantized_where_a_group_says_so_or_the_file_of_fp8_shows_it(tmp_path):
    head = {"lm_head.weight": ("F8_E4M3", (96, 256)), "lm_head.weight_scale": ("F32", ())}
    assert plan(tmp_path, compressed(ignore=[])).form("head") == F8Rows()
    assert plan(tmp_path, FP8, {**headers(), **head}).form("head") == F8Rows()
    with pytest.raises(ModelError, match=r"lm_head\.weight: is F8_E4M3, but quantization_config leaves it"):
        plan(tmp_path, {**FP8, "modules_to_not_convert": ["lm_head"]}, {**headers(), **head})


def test_a_section_may_have_the_name_of_the_first_exports(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "compression_config": compressed()}))
    assert read_plan(WorkerConfig(model=str(tmp_path)), read_spec(tmp_path)).kinds == (F8Rows(),)


@pytest.mark.parametrize(
    ("quantization", "asked"),
    [(FP8, "fp8"), ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8"), (compressed(), "compressed-tensors")],
)
def test_a_name_that_is_asked_for_must_be_the_checkpoints(tmp_path, quantization, asked):
    assert plan(tmp_path, quantization, quantization=asked) == plan(tmp_path, quantization)
    for other in {"int8", "fp8", "compressed-tensors", "fbgemm_fp8"} - {asked}:
        with pytest.raises(
            ModelError, match=f"^quantization: {other} is asked for, but the checkpoint is {asked}; leave"
        ):
            plan(tmp_path, quantization, quantization=other)
    with pytest.raises(
        ModelError, match=r"^quantization: compressed-tensors is asked for, but the checkpoint states none"
    ):
        plan(tmp_path, None, quantization="compressed-tensors")


def test_what_is_made_on_the_fly_and_what_is_kept(tmp_path):
    every = {*plan(tmp_path, FP8).forms}
    assert plan(tmp_path, None) == NO_PLAN
    int8, fp8 = (plan(tmp_path, None, quantization=name) for name in ("int8", "fp8"))
    assert {*int8.forms} == every | {"head"}
    assert {*fp8.forms} == every
    assert (int8.kinds, fp8.kinds) == ((Int8Rows(stored=False),), (F8Rows(stored=False),))
    assert (int8.name, fp8.name, plan(tmp_path, FP8).name) == ("int8", "fp8", "fp8 (f8 rows)")
