"""Engines of tiny models that label tokens: both doors give what the logits of transformers come to, in chunks too."""

import base64

import numpy as np
import pytest
import torch
import transformers
from test_rerankers import post
from tiny_classifiers import write

from quire.proto.api import ClassifyRequest, EmbedRequest, RequestError

TEXTS = ["the cat sat on a mat", "a", "pages, blocks; caches " * 4, "dogs ran home?"]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER"}


@pytest.fixture(
    scope="module",
    params=["BertForTokenClassification", pytest.param("Qwen3ForTokenClassification", marks=pytest.mark.thorough)],
)
def served(request, serve, tmp_path_factory):
    """(engine, folder); the decoder's prompts come in chunks of at most 16 tokens."""
    folder = write(tmp_path_factory.mktemp("tokens"), request.param, id2label=LABELS)
    chunks = ("--max-num-batched-tokens", "16", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "8MiB")
    return serve(str(folder), *(chunks if request.param.startswith("Qwen") else ())), folder


@pytest.fixture(scope="module")
def base_url(served):
    return served[0].wait_for_line(r"HTTP on (http\S+)").group(1)


def of_transformers(folder):
    """The raw numbers [tokens, labels] of each of TEXTS."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0].double().softmax(-1) for text in TEXTS]


def test_both_doors_label_each_token_as_transformers_does(served, base_url):
    engine, folder = served
    expected = of_transformers(folder)
    found = engine.client.classify(ClassifyRequest(inputs=TEXTS))
    assert (tuple(found.labels), found.probs, found.best) == (("O", "B-PER", "I-PER"), [], [])
    assert found.prompt_tokens == sum(map(len, expected))
    status, answer = post(f"{base_url}/pooling", {"input": TEXTS, "task": "token_classify"})
    packed = post(f"{base_url}/pooling", {"input": TEXTS, "encoding_format": "base64"})[1]
    assert (status, [one["object"] for one in answer["data"]]) == (200, ["pooling"] * 4)
    for index, theirs in enumerate(expected):
        np.testing.assert_allclose(found.of_tokens(index), theirs, atol=2e-5)
        np.testing.assert_allclose(answer["data"][index]["data"], theirs, atol=2e-5)
        numbers = np.frombuffer(base64.b64decode(packed["data"][index]["data"]), "<f4").reshape(-1, 3)
        np.testing.assert_allclose(numbers, theirs, atol=2e-5)


def test_many_prompts_at_once_change_nothing(served):
    engine, folder = served
    expected = of_transformers(folder)
    found = engine.client.classify(ClassifyRequest(inputs=TEXTS * 20))
    for index in range(80):
        np.testing.assert_allclose(found.of_tokens(index), expected[index % 4], atol=2e-5)


def test_padding_is_labelled_like_any_token(served):
    engine, folder = served
    ids = [5, 6, 0, 0]
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.config.pad_token_id == 0
    with torch.inference_mode():
        theirs = model(torch.tensor([ids])).logits[0].double().softmax(-1)
    found = engine.client.classify(ClassifyRequest(inputs=[ids]))
    np.testing.assert_allclose(found.of_tokens(0), theirs, atol=2e-5)


def test_other_routes_name_the_one_that_labels_tokens(served, base_url):
    engine, _ = served
    for path in ("/classify", "/v1/embeddings", "/v1/score"):
        body = {"text_1": "a", "text_2": "b"} if path == "/v1/score" else {"input": "a"}
        status, answer = post(base_url + path, body)
        assert (status, answer["error"]["param"]) == (400, "model")
        assert "labels each token here; ask it through /pooling" in answer["error"]["message"]
    with pytest.raises(RequestError, match="labels each token here"):
        engine.client.embed(EmbedRequest(inputs=["a"]))


def test_the_start_shows_a_request_for_labels_of_tokens(served):
    engine, _ = served
    engine.wait_for_line(r"classifies each token: 3 labels \(O, B-PER, I-PER\)")
    engine.wait_for_line(r"/pooling -H")
