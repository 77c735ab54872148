"""Encoders that people ask for by name: what their published config.json reads as, and which are refused, with what
to use."""

import json

import pytest

from quire.worker.config import WorkerConfig
from quire.worker.specs.architectures import ARCHITECTURES, REFUSED
from quire.worker.specs.fit import fit
from quire.worker.specs.needs import Place
from quire.worker.specs.registry import read_spec
from quire.worker.weights.parts import ModelError

XLM_ROBERTA = {
    "model_type": "xlm-roberta",
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8194,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "torch_dtype": "float32",
    "type_vocab_size": 1,
    "use_cache": True,
    "vocab_size": 250002,
}
LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


@pytest.mark.parametrize(
    ("fields", "task", "served"),
    [
        ({"architectures": ["XLMRobertaModel"]}, "auto", None),
        ({"architectures": ["XLMRobertaModel"]}, "pooling", None),
        ({"architectures": ["XLMRobertaForSequenceClassification"], **LABEL}, "auto", "score"),
        ({"architectures": ["XLMRobertaForSequenceClassification"], **LABEL}, "score", "score"),
        ({"architectures": ["XLMRobertaForSequenceClassification"], **LABEL}, "pooling", "score"),
    ],
)
def test_bge_m3_and_its_reranker_read_as_they_were_published(fields, task, served, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**XLM_ROBERTA, **fields}))
    spec = read_spec(tmp_path, task)
    assert (spec.max_model_len, spec.first_position, spec.pooling) == (8192, 2, ("cls",))
    assert (spec.head.task if spec.head else None) == served
    if served:
        assert (spec.head.labels, spec.head.activation) == (("LABEL_0",), "sigmoid")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen2ForRewardModel", "is code of its own, which is never run, and in no library .* with --task reward"),
        ("Qwen2ForProcessRewardModel", "with --task reward"),
        ("NewModel", r"gte-multilingual. is code of its own, which is never run; use an encoder that is a BERT"),
        ("ModernBertForMaskedLM", "fills masks, which nothing here does; use a checkpoint of ModernBertModel"),
        (
            "Lfm2VlForConditionalGeneration",
            "has convolutions between its .*, whose state no KV cache holds; use a Smol",
        ),
        ("BgeM3EmbeddingModel", "makes sparse and ColBERT vectors, which are not served; leave it out for dense"),
    ],
)
@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_what_nothing_here_runs_is_refused_by_name_before_a_library_is_asked(name, words, impl, tmp_path):
    config = {"architectures": [name], "auto_map": {"AutoModel": "modeling.Own"}, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def describe(folder):
        raise AssertionError("the library is asked")

    with pytest.raises(ModelError, match=f"{tmp_path}: architectures: {name} .*{words}"):
        read_spec(tmp_path, impl=impl, describe=describe)
    place = Place(is_gpu=False, memory=1 << 40)
    _, refusals = fit(WorkerConfig(model=str(tmp_path), run_dir=str(tmp_path), model_impl=impl), place)
    assert [f"{tmp_path}: architectures: {name} {REFUSED[name]}"] == refusals


def test_nothing_is_both_served_and_refused():
    assert not ARCHITECTURES.keys() & REFUSED.keys()
