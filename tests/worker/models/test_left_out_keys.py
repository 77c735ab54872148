"""A key that a config.json leaves out, or states as null, means what it means to transformers.

Each architecture's config is written in full, then without each of its keys: the model we would build is held against
the one the library builds. Only sizes that every published config states are refused instead, by their names.
"""

import json
import re
import shutil
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from full_configs import DECODERS, LIBRARY, LLAMA3, OF_ONE_PIECE, OWN, ROPES, YARN, family, full_config
from library_alike import assert_alike, assert_ropes_alike, compare, library_model

from quire.worker.specs.registry import parse_spec, read_spec
from quire.worker.weights.parts import ModelError

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""The library's defaults of these are one published model's, which a checkpoint of another size never means."""
FIRST = [name for name in DECODERS if re.match("Llama(?!4)|Mistral|Ministral|Qwen", name)]
"""Those whose keys may be null, and mean it."""
COMMON = ("Llama", "Gemma3", "Qwen3Moe", "Bert")
"""Families that stand for others where keys are those of all."""


def row(architecture, key):
    """A whole config, and without the keys that only its family has, in `make test`; without any key in `test-all`."""
    kind = family(architecture)
    is_first = architecture == next(name for name in OF_ONE_PIECE if family(name) == kind)
    stands = not key or (is_first and (kind in COMMON or key in OWN.get(kind, ())))
    return pytest.param(architecture, key, marks=() if stands else pytest.mark.thorough)


ROWS = [
    row(architecture, key)
    for architecture in OF_ONE_PIECE
    for key in ("", *full_config(architecture))
    # the library finds its class by one, we by the other; ids of padding are no token of so small a vocabulary
    if key not in ("architectures", "model_type") and (key != "pad_token_id" or architecture not in DECODERS)
]


@pytest.mark.parametrize(("architecture", "key"), ROWS)
def test_a_key_left_out_means_what_it_means_to_the_library(architecture, key):
    config = full_config(architecture)
    config.pop(key, None)
    if key == "max_window_layers":  # 28 without it: let there be layers above
        config["num_hidden_layers"] = 30
    required = (*SIZES, "max_position_embeddings") if architecture not in DECODERS else SIZES
    if architecture == "Dots1ForCausalLM":  # None of it, to the library
        required = (*required, "num_experts_per_tok")
    if key not in required:
        compare(config)
        return
    with pytest.raises(ModelError) as caught:
        parse_spec(config, {})
    assert caught.value.field == key


@pytest.mark.sampled(10)
@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2Model", "Qwen3Model"])
def test_every_spelling_of_rope_without_each_of_its_keys_means_the_same(architecture, rope):
    config = full_config(architecture, rope)
    compare(config)
    for key in ROPES[rope]:
        compare({name: value for name, value in config.items() if name != key})
    (where,) = [key for key in ROPES[rope] if isinstance(config[key], dict)]
    for key in config[where]:
        compare({**config, where: {name: value for name, value in config[where].items() if name != key}})


KEYS = {
    "rope_theta": (77, 77.0),
    "factor": (None, 3, 1.0),
    "original_max_position_embeddings": (24, 500),
    "attention_factor": (None, 0.7, 1),
    "beta_fast": (None, 0, 16.5),
    "beta_slow": (None, 0, 2),
    "mscale": (None, 0, 0.7),
    "mscale_all_dim": (None, 0, 0.7),
    "truncate": (None, True),
    "low_freq_factor": (2, 0.5),
    "high_freq_factor": (8, 2.5),
    "llama_4_scaling_beta": (None, 0, 0.0, 0.3),
}
"""Values with which some rope is computed, and not by what the key says elsewhere."""
BESIDE = {"original_max_position_embeddings": (24,), "partial_rotary_factor": (None, 1.0), "rope_theta": (33.0,)}
"""The same, beside the section."""
SECTIONED = ("Gemma3", "Olmo3")
KINDS = {
    "default": {"rope_type": "default", "rope_theta": 300.0},
    "linear": {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 300.0, "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Llama", "Ministral3", "Gemma3", "Olmo3", "GptOss", "Glm4", "Exaone4"])
def test_every_key_of_a_rope_means_what_it_means_to_the_library(name, kind):
    base = {key: value for key, value in full_config(f"{name}ForCausalLM").items() if not key.startswith("rope_")}
    rotary = type(library_model({**base, "rope_parameters": stated_as(name, KINDS[kind])}).model.rotary_emb)
    compared = 0
    within = [({}, {key: value}) for key, values in KEYS.items() for value in values]
    beside = [({key: value}, {}) for key, values in BESIDE.items() for value in values]
    for outer, inner in within + beside:
        config = {**base, **outer, "rope_parameters": stated_as(name, {**KINDS[kind], **inner})}
        try:
            theirs = LIBRARY[name].from_dict(deepcopy(config))
            rotary(config=theirs)
        except Exception:  # by one of many kinds
            continue
        if inner.get("llama_4_scaling_beta") and "original_max_position_embeddings" not in theirs.rope_parameters:
            continue  # the library fails at the first token of Ministral 3
        layers = parse_spec(deepcopy(config), {}).layers
        for number, layer in enumerate(layers):
            if layer.attention.rope.type != "none":
                assert_ropes_alike(layer.attention.rope, theirs, rotary, number)
                compared += 1
    assert compared > len(KEYS)


def stated_as(name, rope):
    """The section of a rope, or of the layers that see everything where others have one of their own."""
    plain = {"rope_type": "default", "rope_theta": 60.0}
    return {"full_attention": rope, "sliding_attention": plain} if name in SECTIONED else dict(rope)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [  # where the library takes it
        *(
            (name, "num_key_value_heads", None)
            for name in FIRST
            if "Moe" not in name and not name.startswith(("Mistral", "Ministral"))
        ),
        *((name, "sliding_window", None) for name in FIRST),
        *((name, "head_dim", None) for name in FIRST if not name.startswith(("Qwen", "Ministral"))),
        *((name, "rope_parameters", None) for name in FIRST),
        *((name, "max_window_layers", 0) for name in FIRST if name.startswith("Qwen")),
        *((name, "layer_types", None) for name in FIRST if name.startswith("Qwen")),
        *((name, "use_sliding_window", False) for name in FIRST if name.startswith("Qwen")),
    ],
)
def test_null_is_not_the_same_as_left_out(architecture, key, value):
    config = full_config(architecture) | {key: value}
    assert_alike(parse_spec(config, {}), library_model(config))


@pytest.mark.parametrize("pattern", [None, "LGLL"])
@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Cohere2ForCausalLM", "Exaone4ForCausalLM"])
def test_a_pattern_of_windows_says_nothing_beside_the_types_of_layers(architecture, pattern):
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    config = full_config(architecture) | {"layer_types": types, "sliding_window_pattern": pattern}
    assert_alike(parse_spec(config, {}), library_model(config))


@pytest.mark.parametrize("key", ["max_position_embeddings", "max_window_layers"])
def test_a_null_that_means_nothing_is_refused(key):
    with pytest.raises(ModelError) as caught:
        parse_spec(full_config("Qwen2ForCausalLM") | {key: None}, {})
    assert caught.value.field == key


@pytest.mark.sampled(8)
@pytest.mark.parametrize("stated", ["absent", None, 5, [5, 6]])
@pytest.mark.parametrize("generation", ["no file", "absent", None, 7, [7, 8]])
def test_end_tokens_are_those_the_library_generates_with_and_the_other_files(
    stated, generation, tiny_checkpoint, tmp_path
):
    folder = rewritten(tiny_checkpoint(), tmp_path, eos_token_id=stated)
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").unlink()  # what it names is in test_ends.py
    if generation != "no file":
        said = {} if generation == "absent" else {"eos_token_id": generation}
        (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, **said}))
    found = set(read_spec(folder).eos_token_ids)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id
    assert found >= set(ids(theirs))
    assert found == {*ids(stated), *ids(generation)}


def ids(stated):
    """What a file may say -> ids."""
    return stated if isinstance(stated, list) else [stated] if isinstance(stated, int) else []


@pytest.mark.parametrize("shards", ["1GB", "100KB"])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_a_dtype_left_out_is_that_of_the_weights(stored, shards, tiny_checkpoint, tmp_path):
    folder = rewritten(tiny_checkpoint(dtype=stored, max_shard_size=shards), tmp_path, dtype="absent")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).dtype
    assert (read_spec(folder).dtype, theirs) == (stored, getattr(torch, stored))
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    assert read_spec(folder).dtype == "float32", "dummy weights need no files"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("MistralForCausalLM", {}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 1}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "max_window_layers": 0, "head_dim": 16}),
    ],
)
def test_a_prompt_past_the_window_that_was_left_out_gives_the_tokens_of_transformers(
    architecture, fields, tiny_checkpoint, tmp_path, load, greedy, reference
):
    """The window left out is of 4096 tokens: it changes what follows a prompt of 4600."""
    made = tiny_checkpoint(architecture, max_position_embeddings=8192, **fields)
    folder = rewritten(made, tmp_path / "left out", sliding_window="absent")
    without = rewritten(made, tmp_path / "none", sliding_window=None)
    prompt = torch.randint(0, 320, (4600,), generator=torch.Generator().manual_seed(5)).tolist()
    ((tokens, logprobs),) = reference(folder, [prompt], 6)
    (row,) = greedy(load(folder), num_blocks=600).generate([prompt], 6)
    assert row.tokens == tokens
    assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
    (other,) = greedy(load(without), num_blocks=600).generate([prompt], 6)
    assert other.logprobs != pytest.approx(logprobs, abs=1e-4), "the window made no difference: this proves nothing"


GROWING = {"original_max_position_embeddings": 12, "llama_4_scaling_beta": 0.7}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", **GROWING},
        {"rope_type": "linear", "factor": 2.0, **GROWING},
        {"rope_type": "yarn", "factor": 4.0, **GROWING},
        {"rope_type": "yarn", "factor": 4.0, **GROWING, "llama_4_scaling_beta": 0.0},
        {"rope_type": "default", **GROWING, "llama_4_scaling_beta": 0},
    ],
)
def test_queries_grow_beside_every_rope_as_in_the_library(rope, tiny_checkpoint, tmp_path, load, greedy, reference):
    made = tiny_checkpoint("Ministral3ForCausalLM", rope_parameters={"rope_theta": 50.0, **rope})
    prompt = torch.randint(0, 320, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    ((tokens, logprobs),) = reference(made, [prompt], 6)
    (row,) = greedy(load(made)).generate([prompt], 6)
    assert row.tokens == tokens
    assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
    if rope["llama_4_scaling_beta"]:
        still = rewritten(made, tmp_path, rope_parameters={"rope_theta": 50.0, **rope, "llama_4_scaling_beta": 0.0})
        (other,) = greedy(load(still)).generate([prompt], 6)
        assert other.logprobs != pytest.approx(logprobs, abs=1e-4), "nothing grew: this proves nothing"


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"rope_type": "dynamic", "factor": 2.0}])
def test_growing_queries_without_the_length_of_the_training_are_refused(rope):
    """The library has no length to divide positions by then."""
    config = full_config("Ministral3ForCausalLM") | {"rope_parameters": {**rope, "llama_4_scaling_beta": 0.3}}
    with pytest.raises(ModelError, match="original_max_position_embeddings: config"):
        parse_spec(config, {})


def rewritten(folder, copy, **fields):
    """A copy of a checkpoint whose config.json states other values, or leaves out what is "absent"."""
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    config = json.loads((copy / "config.json").read_text()) | fields
    stated = {name: value for name, value in config.items() if value != "absent"}
    (copy / "config.json").write_text(json.dumps(stated))
    return copy
