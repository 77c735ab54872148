"""Engines of tiny classifiers: both doors give the numbers that transformers' logits come to, by the files' problem."""

import base64
import json
import urllib.request

import numpy as np
import pytest
import torch
import transformers
from parts.clock import GUARD
from test_rerankers import post
from tiny_classifiers import logits, write

from quire.proto.api import ClassifyRequest, GenerateRequest, RequestError, ScoreRequest

TEXTS = ["the cat sat on a mat", "a", "pages, blocks; caches " * 4, "dogs ran home?"]
LABELS = {0: "no", 1: "yes", 2: "maybe"}


def softmax(numbers):
    powers = np.exp(numbers - numbers.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(numbers):
    return 1 / (1 + np.exp(-numbers))


@pytest.fixture(scope="module", params=[pytest.param("single", marks=pytest.mark.thorough), "multi", "decoder"])
def served(request, serve, tmp_path_factory):
    """(engine, folder, activation)"""
    folder = tmp_path_factory.mktemp("classifier")
    architecture = "Qwen3ForSequenceClassification" if request.param == "decoder" else "BertForSequenceClassification"
    fields = {"problem_type": "multi_label_classification"} if request.param == "multi" else {}
    write(folder, architecture, id2label=LABELS, **fields)
    engine = serve(str(folder), "--served-model-name", "classifier", "--kv-cache-memory-bytes", "8MiB")
    return engine, folder, sigmoid if request.param == "multi" else softmax


@pytest.fixture(scope="module")
def base_url(served):
    return served[0].wait_for_line(r"HTTP on (http\S+)").group(1)


def test_both_doors_give_the_numbers_of_transformers(served, base_url):
    engine, folder, activation = served
    raw = logits(folder, TEXTS)
    found = engine.client.classify(ClassifyRequest(inputs=TEXTS))
    np.testing.assert_allclose(found.probs, activation(raw), atol=2e-5)
    best = [LABELS[index] for index in raw.argmax(1)]
    assert (tuple(found.labels), found.best) == (("no", "yes", "maybe"), best)
    plain = engine.client.classify(ClassifyRequest(inputs=TEXTS, use_activation=False))
    np.testing.assert_allclose(plain.probs, raw, atol=5e-5)
    for path in ("/classify", "/v1/classify"):
        status, answer = post(base_url + path, {"model": "classifier", "input": TEXTS})
        assert status == 200
        np.testing.assert_allclose([one["probs"] for one in answer["data"]], activation(raw), atol=2e-5)
        assert [(one["label"], one["num_classes"]) for one in answer["data"]] == [(label, 3) for label in best]
        assert answer["usage"]["prompt_tokens"] == found.prompt_tokens
    status, answer = post(f"{base_url}/classify", {"input": TEXTS[0], "activation": False})
    np.testing.assert_allclose(answer["data"][0]["probs"], raw[0], atol=5e-5)
    ids = list(engine.client.tokenize(TEXTS[0]).token_ids)
    status, answer = post(f"{base_url}/classify", {"input": [ids, ids]})
    np.testing.assert_allclose([one["probs"] for one in answer["data"]], activation(raw[[0, 0]]), atol=2e-5)


def test_padding_behind_a_text_means_what_it_means_to_transformers(served):
    """The library labels a decoder's last token that is none; an encoder reads it as any other token."""
    engine, folder, activation = served
    ids = list(engine.client.tokenize(TEXTS[0]).token_ids)
    inputs = [ids, [*ids, 0, 0], [*ids, 0, ids[-1]], [0, 0, 0], [0]]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        raw = np.stack([model(torch.tensor([one])).logits[0].double().numpy() for one in inputs])
    found = engine.client.classify(ClassifyRequest(inputs=inputs))
    np.testing.assert_allclose(found.probs, activation(raw), atol=2e-5)
    assert found.prompt_tokens == sum(map(len, inputs))


def test_pooling_answers_with_the_same_numbers(served, base_url):
    _, folder, activation = served
    raw = logits(folder, TEXTS)
    status, answer = post(f"{base_url}/pooling", {"model": "classifier", "input": TEXTS})
    assert (status, [one["object"] for one in answer["data"]]) == (200, ["pooling"] * 4)
    np.testing.assert_allclose([one["data"] for one in answer["data"]], activation(raw), atol=2e-5)
    body = {"input": TEXTS, "use_activation": False, "encoding_format": "base64"}
    status, answer = post(f"{base_url}/pooling", body)
    numbers = [np.frombuffer(base64.b64decode(one["data"]), "<f4") for one in answer["data"]]
    np.testing.assert_allclose(numbers, raw, atol=5e-5)
    status, answer = post(f"{base_url}/pooling", {"input": "a", "dimensions": 2})
    assert (status, answer["error"]["param"]) == (400, "dimensions")
    for task, wanted in (("classify", 200), ("token_classify", 400), ("embed", 400)):
        assert post(f"{base_url}/pooling", {"input": "a", "task": task})[0] == wanted


def test_many_texts_share_steps_and_change_nothing(served):
    engine, folder, activation = served
    found = engine.client.classify(ClassifyRequest(inputs=TEXTS * 100))
    np.testing.assert_allclose(found.probs, np.tile(activation(logits(folder, TEXTS)), (100, 1)), atol=2e-5)


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("/classify", {"input": []}, "input", "is empty"),
        ("/classify", {"input": ["a"] * 3000}, "input", "1 to 2048 entries, got 3000; send them in several requests"),
        ("/classify", {"input": ["a", "cat " * 300]}, "input[1]", "truncate_prompt_tokens"),
        ("/classify", {"input": "a", "messages": []}, "messages", "excludes input"),
        ("/rerank", {"query": "a", "documents": ["b"]}, "model", "classifies here; ask it through /classify"),
        ("/v1/embeddings", {"input": "a"}, "model", "classifies here; ask it through /classify"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, None, None),
    ],
)
def test_a_users_mistake_is_named(path, body, param, text, base_url):
    status, answer = post(base_url + path, body)
    assert 400 <= status < 500
    if text is not None:
        assert answer["error"]["param"] == param
        assert text in answer["error"]["message"]


def test_facts_say_the_task_and_other_tasks_are_refused(served, base_url):
    engine, _, _ = served
    with urllib.request.urlopen(f"{base_url}/v1/models", timeout=GUARD) as answer:
        card = json.load(answer)["data"][0]
    assert (card["task"], card["labels"]) == ("classify", ["no", "yes", "maybe"])
    info = engine.client.server_info()
    assert (info.task, tuple(info.labels)) == ("classify", ("no", "yes", "maybe"))
    for ask in (
        lambda: engine.client.score(ScoreRequest(query="a", documents=["b"])),
        lambda: engine.client.generate(GenerateRequest(input="a")),
    ):
        with pytest.raises(RequestError, match="classifies here") as refused:
            ask()
        assert refused.value.reason == "UNSUPPORTED"


def test_a_reward_model_answers_with_its_raw_number(serve, tmp_path):
    folder = write(tmp_path, "Qwen3ForSequenceClassification", num_labels=1)
    engine = serve(str(folder), "--task", "reward", "--kv-cache-memory-bytes", "8MiB")
    assert engine.client.server_info().task == "reward"
    found = engine.client.classify(ClassifyRequest(inputs=TEXTS))
    np.testing.assert_allclose(found.probs, logits(folder, TEXTS), atol=5e-5)
    with pytest.raises(RequestError, match="gives rewards here; ask it through /classify or /pooling"):
        engine.client.score(ScoreRequest(query="a", documents=["b"]))
