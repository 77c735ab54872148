"""The directory that is made of an encoder's GGUF file: its config, its pooling, and every refusal."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

import gguf_bytes
from gguf_encoders import BERT, SMALL, TENSORS, TYPE_COUNT, XLM_ROBERTA, write

from quire.deploy.gguf.folder import clear, make_folder
from quire.frontend.request.sentence_settings import sentence_settings
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError


def folder_of(folder, metadata=None, tensors=None, base=BERT, whole=TENSORS, with_tokenizer=True):
    """The directory of a small model with these changes; None: a key or a tensor is left out."""
    given = [
        {key: value for key, value in (all_of | (changed or {})).items() if value is not None}
        for all_of, changed in ((base, metadata), (whole, tensors))
    ]
    make_folder(write(folder / "model.gguf", *given), folder / "made", with_tokenizer)
    return folder / "made"


@pytest.mark.parametrize("base", [BERT, XLM_ROBERTA])
def test_the_config_is_that_of_the_original(tmp_path, base):
    made = folder_of(tmp_path, base=base)
    original = {**SMALL, "architectures": ["BertModel"], "model_type": "bert", "dtype": "float32", "vocab_size": 7}
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "config.json").write_text(json.dumps(original | {"type_vocab_size": 2}))
    spec = read_spec(made)
    assert (spec.pooling, spec.max_model_len, spec.first_position) == (("mean",), 64, 0)
    for name in ("1_Pooling/config.json", "modules.json"):
        (made / name).unlink()
    assert read_spec(made) == read_spec(tmp_path / "original")


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last"), (None, "cls")])
def test_the_pooling_is_the_one_that_is_stated(tmp_path, number, pooling):
    made = folder_of(tmp_path, {"bert.pooling_type": number})
    assert read_spec(made).pooling == (pooling,)
    assert sentence_settings(made).normalizes


def test_a_decoder_may_be_an_embedding_model(tmp_path):
    keys, tensors = gguf_bytes.LLAMA, gguf_bytes.TENSORS
    made = folder_of(tmp_path, {"llama.pooling_type": 3}, base=keys, whole=tensors)
    assert read_spec(made).pooling == ("last",)
    assert read_spec(folder_of(tmp_path, base=keys, whole=tensors)).pooling is None


def test_nothing_of_an_earlier_one_stays_and_nothing_of_others_goes(tmp_path):
    made = folder_of(tmp_path)
    folder_of(tmp_path, {"bert.pooling_type": None}, with_tokenizer=False)
    assert {path.name for path in made.iterdir()} == {"config.json", "tokenizer_config.json", "model.gguf"}
    folder_of(tmp_path)
    (made / "1_Pooling" / "note").touch()
    clear(made)
    assert [str(path.relative_to(made)) for path in sorted(made.rglob("*"))] == ["1_Pooling", "1_Pooling/note"]


def test_one_type_of_tokens_may_have_lost_its_axis(tmp_path):
    made = folder_of(tmp_path, {TYPE_COUNT: 1}, {"token_types.weight": (32,)})
    assert read_spec(made).num_token_types == 1


def test_another_tokenizer_makes_the_files_own_no_matter(tmp_path):
    folder_of(tmp_path, {"tokenizer.ggml.pre": "bert-bge-large"}, with_tokenizer=False)
    assert not (tmp_path / "made" / "tokenizer.json").exists()


REFUSED = {
    "the past alone": ({"bert.attention.causal": True}, "causal: encoders that see only the past are not supported"),
    "a key that nobody reads": ({"bert.rope.freq_base": 1e4}, "bert.rope.freq_base: is not read; choose another file"),
    "labels": ({"bert.classifier.output_labels": ["a"]}, "output_labels: is not read"),
    "no heads": ({"bert.attention.head_count": 0}, r"head_count: must be a whole number in \[1, "),
    "heads that leave a rest": ({"bert.attention.head_count": 3}, "head_count: 3 do not divide .*length 32; choose"),
    "more heads than values": ({"bert.attention.head_count": 64}, "head_count: 64 do not divide"),
    "fewer heads of keys": ({"bert.attention.head_count_kv": 2}, "head_count_kv: must be 4"),
    "longer keys": ({"bert.attention.key_length": 16}, "key_length: must be 8"),
    "no epsilon": ({"bert.attention.layer_norm_epsilon": None}, "epsilon: is not there, and must be a positive"),
    "no length": ({"bert.context_length": 1 << 31}, "context_length: must be a whole number"),
    "no pooling": ({"bert.pooling_type": 0}, r"pooling_type: 0 is not supported; supported: 1 \(mean_tokens\), 2"),
    "a ranking": ({"bert.pooling_type": 4}, "pooling_type: 4 is not supported"),
    "a pooling by name": ({"bert.pooling_type": "mean"}, "pooling_type: must be a whole number"),
    "other types of tokens": ({TYPE_COUNT: 3}, r"token_type_count: must be that of the rows of token_types\.weight, 2"),
    "another tokenizer": ({"tokenizer.ggml.model": "llama"}, "'llama' is not supported; supported: bert, t5, gpt2; na"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_that_is_not_served_is_refused_by_its_key(tmp_path, what):
    changed, message = REFUSED[what]
    with pytest.raises(ModelError, match=message) as refused:
        folder_of(tmp_path, changed)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_embd.weight": None}, r"token_embd\.weight: is not there"),
        ({"token_types.weight": None}, r"token_types\.weight: is not there"),
        ({"cls.weight": (32, 32)}, r"cls\.weight: is of a model that ranks or classifies"),
        ({"cls.output.bias": (1,)}, r"cls\.output\.bias: is of a model that ranks or classifies"),
    ],
)
def test_tensors_that_decide_the_config_are_checked(tmp_path, tensors, message):
    with pytest.raises(ModelError, match=message):
        folder_of(tmp_path, tensors=tensors)
