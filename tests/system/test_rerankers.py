"""Engines of tiny cross-encoders: both doors score pairs as transformers' logits say, through the sigmoid or raw."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from parts.clock import GUARD
from tiny_classifiers import logits, write

from quire.proto.api import EmbedRequest, RequestError, ScoreRequest

QUERY = "the cat sat on a mat"
DOCUMENTS = ["a dog ran home", "the cat sat on the mats?", "", "pages, blocks; caches " * 4, "</s> [SEP] <s> é"]


@pytest.fixture(scope="module", params=["BertForSequenceClassification", "XLMRobertaForSequenceClassification"])
def served(request, serve, tmp_path_factory):
    """(engine, folder) of each kind."""
    folder = tmp_path_factory.mktemp("reranker")
    write(folder, request.param, num_labels=1)
    return serve(str(folder), "--served-model-name", "reranker"), folder


@pytest.fixture(scope="module")
def base_url(served):
    return served[0].wait_for_line(r"HTTP on (http\S+)").group(1)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def sigmoid(numbers):
    return 1 / (1 + np.exp(-numbers))


def test_every_route_scores_pairs_as_transformers_does(served, base_url):
    engine, folder = served
    plain = DOCUMENTS[:4]  # special tokens that a user spells are text here, and tokens for the library
    raw = logits(folder, [(QUERY, text) for text in plain])[:, 0]
    scores = engine.client.score(ScoreRequest(query=QUERY, documents=plain)).scores
    np.testing.assert_allclose(scores, sigmoid(raw), atol=2e-5)
    given = engine.client.score(ScoreRequest(query=QUERY, documents=plain, use_activation=False)).scores
    np.testing.assert_allclose(given, raw, atol=5e-5)
    order = np.argsort(-raw)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = {"model": "reranker", "query": QUERY, "documents": [{"text": plain[0]}, *plain[1:]], "top_n": 3}
        status, answer = post(base_url + path, body)
        assert status == 200
        assert [one["index"] for one in answer["results"]] == order[:3].tolist()
        assert [one["document"]["text"] for one in answer["results"]] == [plain[index] for index in order[:3]]
        np.testing.assert_allclose(
            [one["relevance_score"] for one in answer["results"]], sigmoid(raw[order[:3]]), atol=2e-5
        )
    status, answer = post(f"{base_url}/rerank", {"query": QUERY, "texts": plain, "raw_scores": True})
    np.testing.assert_allclose([one["score"] for one in answer], raw[order], atol=5e-5)
    for path in ("/score", "/v1/score"):
        status, answer = post(base_url + path, {"text_1": QUERY, "text_2": plain})
        np.testing.assert_allclose([one["score"] for one in answer["data"]], sigmoid(raw), atol=2e-5)
    status, answer = post(f"{base_url}/score", {"text_1": plain[:2], "text_2": plain[2:], "use_activation": False})
    pairs = logits(folder, [(plain[0], plain[2]), (plain[1], plain[3])])[:, 0]
    np.testing.assert_allclose([one["score"] for one in answer["data"]], pairs, atol=5e-5)
    assert (
        "document"
        not in post(f"{base_url}/rerank", {"query": "a", "documents": ["b"], "return_documents": False})[1]["results"][
            0
        ]
    )


def test_long_pairs_are_cut_as_the_library_cuts_them(served):
    engine, folder = served
    long = "the cat sat on a mat and ran home. " * 30
    pairs = [(QUERY, long), (long, QUERY), (long, long)]
    raw = logits(folder, pairs, most=64)[:, 0]
    asked = ScoreRequest(
        queries=[first for first, _ in pairs],
        documents=[second for _, second in pairs],
        truncate_prompt_tokens=64,
        use_activation=False,
    )
    np.testing.assert_allclose(engine.client.score(asked).scores, raw, atol=5e-5)


def test_a_pair_does_not_hang_on_its_neighbours_nor_on_special_tokens_spelled_in_it(served):
    engine, _ = served
    alone = [engine.client.score(ScoreRequest(query=QUERY, documents=[text])).scores[0] for text in DOCUMENTS]
    together = engine.client.score(ScoreRequest(query=QUERY, documents=DOCUMENTS * 100)).scores
    np.testing.assert_allclose(together, alone * 100, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("/rerank", {"query": "a", "documents": []}, "documents", "1 to 2047"),
        ("/rerank", {"query": "a", "documents": ["b"] * 10_000}, "documents", "got 10000; send them in several"),
        ("/rerank", {"query": "a", "documents": ["b", "cat " * 300]}, "documents[1]", "truncate_prompt_tokens"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "at least 1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "as many as text_2"),
        ("/v1/embeddings", {"input": "a"}, "model", "ask it through /v1/score or /v1/rerank"),
        ("/v1/completions", {"prompt": "a"}, "model", "ask it through /v1/score or /v1/rerank"),
    ],
)
def test_a_users_mistake_is_named(path, body, param, text, base_url):
    status, answer = post(base_url + path, body)
    assert status in (400, 404)
    assert answer["error"]["param"] == param
    assert text in answer["error"]["message"]


def test_facts_say_the_task_and_embedding_is_refused_over_grpc(served):
    engine, _ = served
    info = engine.client.server_info()
    assert (info.task, tuple(info.labels), info.embedding_size) == ("score", ("LABEL_0",), 0)
    with pytest.raises(RequestError, match="scores pairs of texts here"):
        engine.client.embed(EmbedRequest(inputs=["a"]))
    assert any("scores pairs: 1 label (LABEL_0), texts of up to" in line for line in engine.lines)
