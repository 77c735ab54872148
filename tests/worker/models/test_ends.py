"""The tokens that end an output, whichever file of a model names them: its tokenizer's settings as transformers reads
them, config.json inside and outside its section of a text, another tokenizer's directory."""

import json
import sys
from pathlib import Path

import pytest
import transformers

sys.path.insert(0, str(Path(__file__).parents[2]))

from tiny_tokenizer import write_tokenizer

from quire.worker.specs.kinds.ends import tokenizer_ends
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

SPECIALS = ("<|endoftext|>", "<|turn|>", "<|im_end|>")
OTHER, CHAT_END = 0, 2
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
WRAPPED = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "dtype": "float32",
    "text_config": {
        **LLAMA,
        "num_key_value_heads": 2,
        "num_local_experts": 2,
        "intermediate_size_mlp": 32,
        "head_dim": 16,
    },
}
ADDED = {"content": "<|im_end|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
NAMED = {
    "as a text": {"tokenizer_config.json": {"eos_token": "<|im_end|>"}},
    "as an added token": {"tokenizer_config.json": {"eos_token": {"__type": "AddedToken", **ADDED}}},
    "beside ids of its own": {
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "added_tokens_decoder": {"2": {**ADDED, "special": True}}}
    },
    "in the older file": {
        "tokenizer_config.json": {"eos_token": None},
        "special_tokens_map.json": {"eos_token": ADDED},
    },
    "by none": {},
}


def written(folder, config=LLAMA, files=(), generation=None):
    """A folder whose config.json and generation_config.json name another end."""
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, SPECIALS, "", ["words of a text"], 280)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for name, fields in {"tokenizer_config.json": {"eos_token": None}, **dict(files)}.items():
        (folder / name).write_text(json.dumps({**settings, **fields} if name == "tokenizer_config.json" else fields))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": OTHER, **config}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": OTHER, **(generation or {})}))
    return folder


@pytest.mark.parametrize("how", NAMED)
def test_the_end_that_the_tokenizer_names_is_one_of_the_model(how, tmp_path):
    folder = written(tmp_path, files=NAMED[how])
    theirs = transformers.AutoTokenizer.from_pretrained(folder).eos_token_id
    assert theirs == (None if how == "by none" else CHAT_END)
    assert read_spec(folder).eos_token_ids == (OTHER, *[one for one in (theirs,) if one is not None])


@pytest.mark.parametrize(
    "stated",
    [
        {"eos_token_id": CHAT_END},
        {"text_config": WRAPPED["text_config"] | {"eos_token_id": CHAT_END}},
        {"eos_token_id": CHAT_END, "text_config": WRAPPED["text_config"] | {"eos_token_id": 1}},
        {"eos_token_id": None, "text_config": WRAPPED["text_config"] | {"eos_token_id": [1, CHAT_END]}},
    ],
)
def test_a_config_names_ends_within_its_text_and_outside(stated, tmp_path):
    spec = read_spec(written(tmp_path, WRAPPED | stated), language_only=True)
    named = [stated.get("eos_token_id", OTHER), stated.get("text_config", {}).get("eos_token_id", OTHER)]
    flat = [one for each in named for one in (each if isinstance(each, list) else [each]) if one is not None]
    assert set(spec.eos_token_ids) == {OTHER, *flat}


@pytest.mark.usefixtures("described_here")
def test_the_library_s_modules_have_the_same_ends(tmp_path):
    folder = written(tmp_path, files=NAMED["as a text"], generation={"eos_token_id": 5})
    ends = read_spec(folder).eos_token_ids
    assert set(ends) == {OTHER, CHAT_END, 5}
    assert read_spec(folder, impl="transformers").eos_token_ids == ends


def test_another_tokenizer_names_the_end_and_the_models_own_does_not(tmp_path):
    other = written(tmp_path / "other", files=NAMED["as a text"])
    model = written(tmp_path / "model", files={"tokenizer_config.json": {"eos_token": "<|turn|>"}})
    assert read_spec(model, tokenizer=str(other)).eos_token_ids == (OTHER, CHAT_END)


def test_an_id_that_no_logit_is_for_is_no_end_and_what_is_no_id_is_refused(tmp_path):
    folder = written(tmp_path, LLAMA | {"eos_token_id": [300, 299]})
    assert read_spec(folder).eos_token_ids == (OTHER, 299)
    with pytest.raises(ModelError, match=r"text_config\.eos_token_id: must be a token id"):
        read_spec(written(tmp_path, WRAPPED | {"text_config": WRAPPED["text_config"] | {"eos_token_id": "</s>"}}))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"eos_token": "<|no token|>"}'),
        ("tokenizer_config.json", b'{"eos_token": "\\ud800"}'),
        ("tokenizer_config.json", b'{"eos_token": {"content": ["<|im_end|>"]}}'),
        ("tokenizer_config.json", None),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", None),
    ],
)
def test_files_that_do_not_read_name_no_end(name, content, tmp_path):
    """The frontend, which needs them, refuses them by name."""
    folder = written(tmp_path, files=NAMED["as a text"])
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert tokenizer_ends(folder) == ()
