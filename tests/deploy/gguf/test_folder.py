"""The directory that is made of a GGUF file: the config of its original, and every refusal."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from gguf_bytes import LLAMA, TENSORS, gguf

from quire.deploy.gguf.folder import make_folder
from quire.deploy.gguf.metadata import Metadata
from quire.deploy.gguf.rope import LLAMA3, rope_parameters
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

MADE = Path(__file__).parents[2] / "worker/weights/ggufs"
EXPECTED = json.loads((MADE / "expected.json").read_text())["models"]


def config_of(folder, metadata=None, tensors=None, with_tokenizer=True):
    """The config.json of a small model with these changes; None: a key or a tensor is left out."""
    path = folder / "model.gguf"
    given = [
        {key: value for key, value in (base | (changed or {})).items() if value is not None}
        for base, changed in ((LLAMA, metadata), (TENSORS, tensors))
    ]
    path.write_bytes(gguf(*given))
    make_folder(path, folder / "made", with_tokenizer)
    return json.loads((folder / "made" / "config.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_config_is_that_of_the_original(tmp_path, name):
    make_folder(next(MADE.glob(f"{name}*.gguf")), tmp_path / "made", with_tokenizer=True)
    made = json.loads((tmp_path / "made" / "config.json").read_text())
    original = EXPECTED[name]["config"] | {"eos_token_id": made["eos_token_id"]}
    assert {key: made[key] for key in original} == original
    assert made["eos_token_id"][:1] == EXPECTED[name]["config"]["eos_token_id"]
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "config.json").write_text(json.dumps(original | {"dtype": made["dtype"]}))
    assert read_spec(tmp_path / "made") == read_spec(tmp_path / "original")


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama-spm-f16", "float16"), ("llama3-f32", "float32"), ("qwen2-bf16", "bfloat16")]
)
def test_the_dtype_is_that_of_the_weights(tmp_path, name, dtype):
    make_folder(MADE / f"{name}.gguf", tmp_path / "made", with_tokenizer=True)
    assert read_spec(tmp_path / "made").dtype == dtype


def test_files_lie_in_it_under_their_own_names_and_nothing_of_an_earlier_one(tmp_path):
    make_folder(MADE / "qwen3-split-00002-of-00002.gguf", tmp_path / "made", with_tokenizer=True)
    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert {path for path in names if path.endswith(".gguf")} == {
        "qwen3-split-00001-of-00002.gguf",
        "qwen3-split-00002-of-00002.gguf",
    }
    make_folder(MADE / "llama3-f32.gguf", tmp_path / "made", with_tokenizer=False)
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "config.json",
        "tokenizer_config.json",
        "llama3-f32.gguf",
    }


def test_what_is_left_out_has_the_formats_default(tmp_path):
    left_out = ("attention.head_count_kv",)
    made = config_of(tmp_path, {f"llama.{key}": None for key in left_out})
    assert (made["num_key_value_heads"], made["head_dim"], made["rope_theta"]) == (4, 8, 10000.0)
    assert (made["tie_word_embeddings"], made["attention_bias"], made["eos_token_id"]) == (True, False, [3])
    made = config_of(tmp_path, {"tokenizer.ggml.eos_token_id": None}, {"output.weight": (4, 32)})
    assert (made["tie_word_embeddings"], made["eos_token_id"]) == (False, None)


def test_every_token_that_ends_is_an_end(tmp_path):
    ids = {"eos_token_id": 3, "eot_token_id": 2, "eom_token_id": 3}
    made = config_of(tmp_path, {f"tokenizer.ggml.{key}": token for key, token in ids.items()})
    assert made["eos_token_id"] == [3, 2]


SAMPLING = {
    "none": ({}, None),
    "all": (
        {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "penalty_repeat": 1.05, "penalty_last_n": 64},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.05},
    ),
    "whole numbers for others and others for whole ones": (
        {"temp": 1, "top_k": 20.0, "top_p": 1, "penalty_repeat": 1},
        {"temperature": 1.0, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.0},
    ),
    "beyond what changes something": (
        {"temp": -1.0, "top_k": -5, "top_p": 1.5, "min_p": -0.1},
        {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    ),
    "a penalty over no token": ({"penalty_repeat": 1.5, "penalty_last_n": 0}, {}),
}


@pytest.mark.parametrize("what", SAMPLING)
def test_recommended_sampling_is_the_default_of_requests(what, tmp_path):
    from quire.frontend.request.defaults import Defaults, load_defaults

    keys, expected = SAMPLING[what]
    config_of(tmp_path, {f"general.sampling.{key}": value for key, value in keys.items()})
    assert load_defaults(str(tmp_path / "made")) == Defaults(**(expected or {}))
    assert (tmp_path / "made" / "generation_config.json").exists() == (expected not in (None, {}))
    config_of(tmp_path)
    assert not (tmp_path / "made" / "generation_config.json").exists()


def test_recommended_sampling_that_is_not_served_reaches_the_frontend_by_its_name(tmp_path):
    others = {"xtc_probability": 0.5, "mirostat": 2, "sequence": "top_k;temperature"}
    config_of(tmp_path, {f"general.sampling.{key}": value for key, value in others.items()})
    assert json.loads((tmp_path / "made" / "generation_config.json").read_text()) == others


MARKS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>",
    "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<eos>",
    "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<｜end▁of▁sentence｜>", "<|fim_pad|>", "<fim-pad>",
    "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)  # fmt: skip
"""Texts by which llama.cpp ends an output."""


def of_vocabulary(folder, tokens, types, **keys):
    """The ends and the special tokens of a model whose `eos_token_id` names the first token."""
    tokens = ["a", "b", "ab", *tokens]
    changed = {"tokens": tokens, "token_type": [1, 1, 1, *types], "eos_token_id": 0, **keys}
    tensors = {"token_embd.weight": (len(tokens), 32)}
    ends = config_of(folder, {f"tokenizer.ggml.{key}": one for key, one in changed.items()}, tensors)["eos_token_id"]
    added = json.loads((folder / "made" / "tokenizer.json").read_text())["added_tokens"]
    return {tokens[end] for end in ends}, {one["content"] for one in added if one["special"]}


@pytest.mark.parametrize("kind", ["ordinary", "control", "user defined"])
@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_ends_an_output_by_its_text_whatever_the_keys_say(mark, kind, tmp_path):
    found = of_vocabulary(tmp_path, [mark, "<|begin|>"], [{"ordinary": 1, "control": 3, "user defined": 4}[kind], 3])
    assert found == ({"a", mark}, {mark, "<|begin|>"})


def test_marks_that_end_something_else_are_no_ends(tmp_path):
    harmony = ["<|end|>", "<|return|>", "<|call|>"]
    assert of_vocabulary(tmp_path, harmony, [3, 3, 3])[0] == {"a", "<|return|>", "<|call|>"}
    assert of_vocabulary(tmp_path, ["<|end|>", "<|call|>"], [3, 3])[0] == {"a", "<|end|>", "<|call|>"}
    solar = ["<|end|>", "<|flush|>", "<|calls|>"]
    assert of_vocabulary(tmp_path, solar, [3, 3, 3])[0] == {"a", "<|flush|>", "<|calls|>"}
    gemma = ["</s>", "<|tool_response>", "<turn|>"]
    assert of_vocabulary(tmp_path, gemma, [4, 3, 3])[0] == {"a", "<|tool_response>", "<turn|>"}


def test_a_mark_that_merges_make_of_a_text_is_no_end(tmp_path):
    """Many vocabularies have the tag of HTML that others end by."""
    tokens, merges = ["<", "/", "s", ">", "</", "s>", "</s>"], ["< /", "s >", "</ s>"]
    assert of_vocabulary(tmp_path, tokens, [1] * 7, merges=merges)[0] == {"a"}
    assert of_vocabulary(tmp_path, tokens, [1] * 7)[0] == {"a", "</s>"}


def test_named_templates_are_kept(tmp_path):
    config_of(tmp_path, {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"})
    found = json.loads((tmp_path / "made" / "tokenizer_config.json").read_text())["chat_template"]
    assert found == [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]


def test_another_tokenizer_makes_an_unknown_split_no_matter(tmp_path):
    with pytest.raises(ModelError, match=r"'tekken' is not proven equal"):
        config_of(tmp_path, {"tokenizer.ggml.pre": "tekken"})
    config_of(tmp_path, {"tokenizer.ggml.pre": "tekken"}, with_tokenizer=False)
    assert not (tmp_path / "made" / "tokenizer.json").exists()


REFUSED = {
    "no architecture": ({"general.architecture": None}, "general.architecture: is not there"),
    "another architecture": (
        {"general.architecture": "bert" * 99},
        r"'bertbert.*' is not supported; supported in GGUF",
    ),
    "experts": ({"llama.expert_count": 8}, "llama.expert_count: mixtures of experts are qwen3moe and gpt-oss alone"),
    "attention both ways": ({"llama.attention.causal": False}, "decoders that see what follows are not supported"),
    "a key that nobody reads": ({"llama.logit_scale": 2.0}, "llama.logit_scale: is not read; choose another file"),
    "no heads": ({"llama.attention.head_count": 0}, r"head_count: must be a whole number in \[1, "),
    "heads by layers": ({"llama.attention.head_count": [4]}, "head_count: must be a whole number .* got a list of 1"),
    "true heads": ({"llama.attention.head_count": True}, "head_count: must be a whole number"),
    "no size": ({"llama.embedding_length": None}, "embedding_length: is not there, and must be a whole number"),
    "other values": ({"llama.attention.value_length": 4}, "value_length: must be that of keys, 8"),
    "half a rotation": ({"llama.rope.dimension_count": 4}, "dimension_count: must be that of keys, 8"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "epsilon: must be a positive number, got 0.0"),
    "an endless epsilon": ({"llama.attention.layer_norm_rms_epsilon": float("inf")}, "must be a positive number"),
    "another rope": ({"llama.rope.scaling.type": "dynamic"}, "'dynamic' is not supported; supported: none, linear"),
    "factors that are not there": (
        {"llama.rope.scaling.type": "longrope"},
        r"scaling.type: must be longrope where rope_factors_long\.weight and rope_factors_short\.weight are, both",
    ),
    "linear without a factor": ({"llama.rope.scaling.type": "linear"}, "factor: is not there"),
    "yarn without a length": ({"llama.rope.scaling.type": "yarn"}, "original_context_length: is not there"),
    "yarn of its own": ({"llama.rope.scaling.attn_factor": 1.5}, "llama.rope.scaling.attn_factor: is not read"),
    "another tokenizer": (
        {"tokenizer.ggml.model": "t5"},
        "'t5' is not supported; supported: gpt2, llama; .*--tok",
    ),
    "a temperature that is no number": ({"general.sampling.temp": "hot"}, "sampling.temp: must be a number, got 'hot'"),
    "an endless top_k": ({"general.sampling.top_k": float("inf")}, "top_k: must be a number, got inf"),
    "no tokenizer": ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model: is not there"),
    "more tokens than the model has": (
        {"tokenizer.ggml.tokens": list("abcde"), "tokenizer.ggml.token_type": [1] * 5},
        "has 5 tokens, the model 4",
    ),
    "a template that is no text": ({"tokenizer.chat_template": 3}, "chat_template: must be a text, got 3"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_that_is_not_served_is_refused_by_its_key(tmp_path, what):
    changed, message = REFUSED[what]
    with pytest.raises(ModelError, match=message) as refused:
        config_of(tmp_path, changed)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_embd.weight": None}, r"token_embd\.weight: is not there"),
        ({"rope_freqs.weight": (5,)}, r"rope_freqs\.weight: must be F32 of 4, is F32 of \[5\]"),
        ({"rope_freqs.weight": (1, (4,))}, r"rope_freqs\.weight: must be F32 of 4, is F16"),
        ({"rope_freqs.weight": (4,)}, r"rope_freqs\.weight: is not the stretching of Llama 3\.1 and 3\.2"),
    ],
)
def test_tensors_that_decide_the_config_are_checked(tmp_path, tensors, message):
    with pytest.raises(ModelError, match=message):
        config_of(tmp_path, tensors=tensors)


def ropes(divisors=None, head_dim=8, long=None, short=None, **keys):
    metadata = Metadata({f"llama.rope.{key.replace('__', '.')}": value for key, value in keys.items()})
    return rope_parameters(metadata, "llama", head_dim, divisors, long, short)


def test_ropes_are_those_of_a_config():
    assert ropes(freq_base=5e5) == {"rope_theta": 5e5}
    assert ropes(scaling__type="linear", scaling__factor=4.0)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    length = {"scaling__original_context_length": 32768}
    yarn = ropes(scaling__type="yarn", scaling__factor=4.0, scaling__yarn_beta_fast=16.0, **length)
    assert yarn["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 16.0,
    }
    longrope = ropes(scaling__attn_factor=1.25, long=[2.0] * 4, short=[1.0] * 4, **length)
    assert longrope["original_max_position_embeddings"] == 32768
    assert longrope["rope_scaling"] == {
        "rope_type": "longrope",
        "long_factor": [2.0] * 4,
        "short_factor": [1.0] * 4,
        "attention_factor": 1.25,
    }


@pytest.mark.parametrize("base", [5e-324, 1e-300, 1e-45, 0.5, 1.0])
@pytest.mark.parametrize("divisors", [None, [1.0, 1.0, 8.0, 8.0]])
def test_a_base_with_which_angles_do_not_shrink_is_refused_by_its_key(divisors, base):
    with pytest.raises(ModelError, match=rf"llama\.rope\.freq_base: must be greater than 1, got {base}; "):
        ropes(divisors, freq_base=base)


@pytest.mark.parametrize("value", [1 / 3, 5e-324, 1e-300, 1e6 + 1e-3])
def test_numbers_of_64_bits_are_read_with_all_of_them(value):
    assert Metadata({"key": value}).number("key") == value


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_divisors_are_the_stretching_of_llama_3(factor):
    """Of transformers' own frequencies."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stated = {"rope_type": "llama3", "rope_theta": 5e5, "factor": factor, **LLAMA3}
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=stated)
    stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / (5e5 ** (torch.arange(0, 128, 2).float() / 128))
    divisors = (plain / stretched).tolist()
    assert ropes(divisors, 128, freq_base=5e5)["rope_scaling"] == {"rope_type": "llama3", "factor": factor, **LLAMA3}
    with pytest.raises(ModelError, match="is not the stretching of Llama"):
        ropes([*divisors[:30], divisors[30] * 1.01, *divisors[31:]], 128, freq_base=5e5)
    with pytest.raises(ModelError, match="is 'linear', and rope_freqs"):
        ropes(divisors, 128, scaling__type="linear", scaling__factor=2.0)
