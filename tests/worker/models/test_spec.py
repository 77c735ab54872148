"""Reading a config.json: every field that changes the mathematics, old forms and new, and typed refusals."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from transformers.activations import ACT2FN

from quire.kernels.linear.activation import ACTIVATIONS
from quire.worker.fields import UNGATED
from quire.worker.memory.kv_layout import kv_layout
from quire.worker.specs.architectures import ARCHITECTURES
from quire.worker.specs.kinds.rope import RopeSpec
from quire.worker.specs.registry import parse_spec, read_spec
from quire.worker.specs.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec
from quire.worker.weights.parts import ModelError

DECODERS = [
    name
    for name in ARCHITECTURES
    if name.endswith("ForCausalLM") and re.match(r"(Llama(?!4)|Mi(?!x|niMax)|Qwen\d(?!Moe))", name)
]
"""Those of one reader; test_left_out_keys.py and test_experts.py have them all."""
BASE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
QWEN = {**BASE, "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 4, "sliding_window": 16}


def spec_of(generation=None, **fields):
    config = {name: value for name, value in {**BASE, **fields}.items() if value != "absent"}
    return parse_spec(config, generation or {})


def ropes_of(spec):
    return {layer.attention.rope for layer in spec.layers}


def windows_of(spec):
    return tuple(layer.attention.window for layer in spec.layers)


@pytest.mark.parametrize("name", UNGATED)
def test_a_name_of_an_activation_means_what_it_means_to_the_library(name):
    x = torch.linspace(-6, 6, 121)
    assert torch.allclose(ACTIVATIONS[UNGATED[name]](x), ACT2FN[name](x), atol=1e-6)


def test_what_a_config_leaves_out_takes_the_published_default():
    spec = spec_of()
    rope = RopeSpec("default", 10000.0, 16, 256)
    attention = AttentionSpec(num_heads=4, num_kv_heads=4, head_dim=16, rope=rope)
    assert spec.layers == (LayerSpec(attention=attention, feed_forward=FeedForwardSpec(intermediate_size=96)),) * 4
    assert (attention.qkv_bias, attention.output_bias, attention.qk_norm, attention.window) == (False, False, "", None)
    assert (spec.norm, spec.dtype, spec.tied_embeddings) == (NormSpec(1e-6), "float32", False)
    assert (spec.max_model_len, spec.eos_token_ids) == (256, ())


@pytest.mark.parametrize("architecture", DECODERS)
def test_a_config_written_by_transformers_reads_as_transformers_reads_it(architecture, tiny_checkpoint):
    from transformers import AutoConfig

    folder = tiny_checkpoint(architecture, head_dim=32, num_hidden_layers=2)
    spec, config = read_spec(folder), AutoConfig.from_pretrained(folder)
    assert spec.architecture == architecture
    assert (spec.hidden_size, spec.vocab_size, len(spec.layers)) == (64, 320, 2)
    assert spec.norm.eps == config.rms_norm_eps
    assert spec.eos_token_ids == (0,)
    for attention, feed_forward in ((layer.attention, layer.feed_forward) for layer in spec.layers):
        assert feed_forward.intermediate_size == 96
        assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (4, 2, 32)
        assert attention.rope.theta == config.rope_parameters["rope_theta"]
        assert attention.qk_norm == ("head" if architecture == "Qwen3ForCausalLM" else "")
        assert attention.qkv_bias == (architecture == "Qwen2ForCausalLM")


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, (2,)),
        ([2, 3], None, (2, 3)),
        (2, {"eos_token_id": [5, 6]}, (5, 6, 2)),
        ([6, 2], {"eos_token_id": [5, 6]}, (5, 6, 2)),
        (2, {"eos_token_id": None}, (2,)),
        (None, {}, ()),
    ],
)
def test_end_tokens_are_those_of_both_files(config, generation, expected):
    assert spec_of(generation, eos_token_id=config).eos_token_ids == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 4}},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
        {"rope_scaling": None, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    ],
)
def test_old_and_new_forms_of_rope_read_alike(fields):
    spec = spec_of(**fields)
    assert ropes_of(spec) == {RopeSpec("linear", 500.0, 16, 256, factor=4.0)}
    assert spec.max_model_len == 1024


@pytest.mark.parametrize(
    ("rope", "expected", "max_model_len"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, RopeSpec("dynamic", 1e4, 16, 256, factor=2.0), 512),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            RopeSpec("llama3", 1e4, 16, 64, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
            256,
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
            RopeSpec("yarn", 1e4, 16, 256, factor=4.0, attention_factor=1.5),
            1024,
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "attention_factor": 1.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 16,
                "beta_slow": 2,
                "truncate": False,
            },
            RopeSpec("yarn", 1e4, 16, 64, factor=4.0, beta_fast=16.0, beta_slow=2.0, truncate=False),
            256,
        ),
    ],
)
def test_each_rope_type_reads_its_own_fields(rope, expected, max_model_len):
    spec = spec_of(rope_parameters=rope)
    assert ropes_of(spec) == {expected}
    assert spec.max_model_len == max_model_len


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None,) * 4),
        ({"use_sliding_window": True}, (None,) * 4),
        ({"use_sliding_window": True, "max_window_layers": 1}, (None, 16, 16, 16)),
        ({"use_sliding_window": False, "max_window_layers": 1}, (None,) * 4),
        ({"use_sliding_window": True, "sliding_window": None}, (None,) * 4),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 2}, (16, None) * 2),
    ],
)
def test_qwen_uses_its_window_only_where_it_says_so(fields, expected):
    assert windows_of(spec_of(**{**QWEN, **fields})) == expected


def test_mistral_uses_its_window_in_every_layer():
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 4}
    assert windows_of(spec_of(**mistral, sliding_window=9)) == (9,) * 4
    assert windows_of(spec_of(**mistral, sliding_window=None)) == (None,) * 4


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_dtype_is_read_from_either_name(name):
    assert spec_of(**{name: "bfloat16"}).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures", "supported: LlamaForCausalLM, MistralForCausalLM"),
        ({"architectures": []}, "architectures", "supported"),
        ({"architectures": "absent"}, "architectures", "supported"),
        ({"hidden_act": "relu"}, "hidden_act", "supported: silu"),
        ({"dtype": "float8_e4m3fn"}, "dtype", "not supported"),
        (
            {"rope_scaling": {"type": "new", "factor": 2.0}},
            "rope_type",
            "linear, dynamic, llama3, yarn, longrope",
        ),
        ({"rope_scaling": {"type": "none"}}, "rope_type", "'none' is not supported"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "long_factor", "list of 8 numbers, one for each pair"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [0] * 8}}, "long_factor", "positive number, got 0"),
        ({"architectures": ["CohereForCausalLM"], "use_qk_norm": True}, "use_qk_norm", "layer norms of heads"),
        ({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 9.0}, "attn_logit_softcapping", "not cap"),
        (
            {"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True},
            "use_bidirectional_attention",
            "sees those before it",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"rope_theta": 5.0}},
            "rope_parameters",
            "for each kind of layer",
        ),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0]},
            "no_rope_layers",
            "4 layers, got 2",
        ),
        (
            {"architectures": ["Exaone4ForCausalLM"], "num_key_value_heads": 4, "sliding_window_pattern": "LLG G"},
            "sliding_window_pattern",
            'like "LLLG"',
        ),
        ({"architectures": ["Glm4ForCausalLM"], "partial_rotary_factor": 1.5}, "partial_rotary_factor", "at most 1"),
        ({"rope_scaling": {"type": "linear"}}, "factor", "got None"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor", "at least 1"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "low_freq_factor", "got None"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 3.0}},
            "high_freq_factor",
            "at least low_freq_factor",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters", "between layers"),
        ({"rope_parameters": "yarn"}, "rope_parameters", "must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "got 0.5"),
        ({"head_dim": 15}, "head_dim", "must be even"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "do not divide the 4"),
        ({"hidden_size": 66}, "num_attention_heads", "do not divide hidden_size 66"),
        ({"hidden_size": "absent"}, "hidden_size", "got None"),
        ({"hidden_size": "64"}, "hidden_size", "positive integer, got '64'"),
        ({"vocab_size": True}, "vocab_size", "got True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "got 0"),
        ({"rms_norm_eps": -1}, "rms_norm_eps", "positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id", "token id"),
        ({"max_position_embeddings": None}, "max_position_embeddings", "got None"),
        ({**QWEN, "use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types", "each of 4 layers"),
        ({**QWEN, "use_sliding_window": True, "layer_types": ["chunked"] * 4}, "layer_types", "each of 4 layers"),
        ({**QWEN, "use_sliding_window": True, "layer_types": [[]] * 4}, "layer_types", "each of 4 layers"),
        ({**QWEN, "use_sliding_window": True, "layer_types": 4}, "layer_types", "each of 4 layers"),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers", "whole number, got -1"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_field(fields, field, message):
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(**fields)
    assert caught.value.field == field


def test_code_that_a_known_model_brings_is_left_alone():
    assert spec_of(auto_map={"AutoModelForCausalLM": "modeling.Llama"}) == spec_of()


@pytest.mark.parametrize(("pattern", "full"), [(2, (1, 3)), (4, (3,)), ("LLG", (2,)), ("LG", (1, 3))])
def test_exaone_says_where_its_layers_have_no_window_in_numbers_or_letters(pattern, full):
    exaone = {"architectures": ["Exaone4ForCausalLM"], "num_key_value_heads": 4, "sliding_window": 9}
    spec = spec_of(**exaone, sliding_window_pattern=pattern)
    assert windows_of(spec) == tuple(None if layer in full else 9 for layer in range(4))
    assert [layer.attention.rope.type == "none" for layer in spec.layers] == [layer in full for layer in range(4)]


@pytest.mark.parametrize(("length", "factors"), [(0, (2.0, 4.0)), (65, (2.0, 4.0)), (64, (1.0, 1.0)), (7, (1.0, 1.0))])
def test_the_factors_of_longrope_are_those_of_the_longest_context(length, factors, tmp_path):
    rope = {"rope_type": "longrope", "long_factor": [2.0, 4.0], "short_factor": [1.0, 1.0]}
    phi = {"architectures": ["Phi3ForCausalLM"], "rope_scaling": rope, "original_max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps({**BASE, **phi, "head_dim": 4}))
    (found,) = ropes_of(read_spec(tmp_path, max_model_len=length))
    assert (found.factors, found.original_max_position) == (factors, 64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not found"),
        (b"{", "not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_folder_without_a_readable_config_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=f"^config.json: .*{message}"):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [(Path.mkdir, "is no file"), (os.mkfifo, "is no file"), (lambda path: path.symlink_to(path), "Too many levels")],
)
def test_a_config_that_is_no_file_is_refused(make, message, tmp_path):
    make(tmp_path / "config.json")
    with pytest.raises(ModelError, match=f"^config.json: .*{message}"):
        read_spec(tmp_path)


def test_a_folder_needs_no_generation_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    assert read_spec(tmp_path) == spec_of()


@pytest.mark.parametrize(("size", "expected"), [(1, 2), (2, 1), (4, 1)])
def test_the_cache_of_a_rank_holds_at_least_one_head(size, expected):
    layout = kv_layout(spec_of(num_key_value_heads=2).kv_layers(size), 16, torch.bfloat16)
    (group,) = layout.groups
    assert (group.numbers, group.head_shape, group.block_size) == ((0, 1, 2, 3), (expected, 16), 16)


@pytest.mark.parametrize(("size", "groups"), [(1, 4), (2, 4), (4, 2), (8, 1)])
def test_ranks_that_share_a_key_value_head_have_fewer_queries_to_it(size, groups):
    layers = spec_of(num_attention_heads=8, num_key_value_heads=2, head_dim=16).kv_layers(size)
    assert [layer.queries_per_head for layer in layers] == [groups] * 4
