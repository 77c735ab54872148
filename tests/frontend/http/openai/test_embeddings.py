"""What clients of vLLM, Jina, Cohere and TEI send to embed and to rank, answered by a stand-in for the model."""

import asyncio
import base64
import json
import socket
import threading

import msgspec
import numpy as np
import pytest
from parts.clock import GUARD

from quire.frontend.http.answer import STEP_CHARS, json_text
from quire.frontend.request.pipeline import RequestPipeline
from quire.proto.messages.heads import EmbeddingVector
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import Finish, Outputs
from quire.proto.transport.wire import unpack

TURN = [{"role": "user", "content": "hello"}]


@pytest.fixture
def embedding(web):
    """`embedding(test)`: a vector is (number of tokens, first, last, 1), not normalised where a test says so."""

    def run(test):
        async def main():
            async with web() as w:
                scheduler = w.scheduler

                def script(submit):
                    ids = unpack(submit.prompt)
                    vector = np.array([len(ids), ids[0], ids[-1], 1.0], np.float32).tobytes()
                    finish = Finish(submit.number, 0, "stop", Usage(len(ids), 0, 0, 0.0, 0.0, 0.0), 0)
                    vectors = (EmbeddingVector(submit.number, vector),)
                    scheduler.send(Outputs(scheduler.epoch, b"", b"", b"", b"", (finish,), (), vectors))

                fields = {"task": "embed", "embedding_size": 4, "whole_prompts": True, "shares_prefixes": False}
                scheduler.facts = msgspec.structs.replace(scheduler.facts, **fields)
                scheduler.script = script
                scheduler.change("ready")
                await w.until(lambda: w.server.scheduler.welcome.facts.task == "embed")
                await test(w)

        asyncio.run(main())

    return run


def raw(w, **fields):
    return w.client.post("/v1/embeddings", json={"normalize": False, **fields})


def test_messages_are_embedded_as_the_template_renders_them(embedding):
    async def test(w):
        rendered = (await w.client.post("/tokenize", json={"messages": TURN, "add_generation_prompt": False})).json()
        ids = rendered["tokens"]
        answer = (await raw(w, messages=TURN)).json()
        assert answer["data"][0]["embedding"] == [len(ids), ids[0], ids[-1], 1]
        assert answer["usage"]["prompt_tokens"] == len(ids)
        longer = (await raw(w, messages=TURN, add_generation_prompt=True)).json()
        assert longer["usage"]["prompt_tokens"] > len(ids)

    embedding(test)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/pooling"])
def test_a_model_that_makes_no_vectors_refuses_a_chat_before_it_is_tokenized(web, path, monkeypatch):
    async def tokenize(*_):
        raise AssertionError("seconds of a large chat, for nothing")

    monkeypatch.setattr(RequestPipeline, "tokenize", tokenize)

    async def main():
        async with web() as w:
            answer = await w.client.post(path, json={"messages": TURN})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "vector"),
    [
        ({"truncate_prompt_tokens": -1}, [512, 0, 511 % 400, 1]),
        ({"truncate_prompt_tokens": -1, "truncation_side": "left"}, [512, 88, 599 % 400, 1]),
        ({"truncate_prompt_tokens": 3}, [3, 0, 2, 1]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, [3, 0, 2, 1]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, [3, 197, 199, 1]),
    ],
)
def test_an_input_is_cut_on_the_side_that_is_wanted(embedding, fields, vector):
    async def test(w):
        answer = (await raw(w, input=[token % 400 for token in range(600)], **fields)).json()
        assert answer["data"][0]["embedding"] == vector

    embedding(test)


def test_texts_ids_and_objects_are_inputs_of_one_call(embedding, tokenizer):
    async def test(w):
        answer = (await raw(w, input=["hello world", [5, 6], {"text": "stop"}])).json()
        sizes = [one["embedding"][0] for one in answer["data"]]
        assert sizes == [len(tokenizer.encode("hello world").ids), 2, len(tokenizer.encode("stop").ids)]

    embedding(test)


@pytest.mark.parametrize(("dtype", "kind"), [("float32", "f4"), ("float16", "f2"), ("bfloat16", "u2")])
@pytest.mark.parametrize(("endianness", "order"), [("little", "<"), ("big", ">")])
def test_vectors_come_as_base64_and_as_bytes_of_every_type(embedding, dtype, kind, endianness, order):
    async def test(w):
        wanted = np.array([[1, 9, 9, 1], [2, 5, 7, 1]], np.float32)
        asked = {"input": [[9], [5, 7]], "embed_dtype": dtype, "endianness": endianness}

        def read(content):
            numbers = np.frombuffer(content, order + kind)
            return (numbers.astype(np.uint32) << 16).view(np.float32) if kind == "u2" else numbers

        packed = (await raw(w, **asked, encoding_format="base64")).json()["data"]
        np.testing.assert_equal([read(base64.b64decode(one["embedding"])) for one in packed], wanted)
        answer = await raw(w, **asked, encoding_format="bytes")
        assert answer.headers["content-type"] == "application/octet-stream"
        described = json.loads(answer.headers["metadata"])
        parts = [read(answer.content[one["start"] : one["end"]]) for one in described["data"]]
        np.testing.assert_equal(parts, wanted)
        assert described["data"][1] == {
            "index": 1,
            "embed_dtype": dtype,
            "endianness": endianness,
            "start": len(answer.content) // 2,
            "end": len(answer.content),
            "shape": [4],
        }
        assert described["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        bare = await raw(w, **asked, encoding_format="bytes_only")
        assert (bare.content, bare.headers.get("metadata")) == (answer.content, None)

    embedding(test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "x", "messages": TURN}, "messages"),
        ({"input": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "x", "mm_processor_kwargs": {"max_pixels": 9}}, "mm_processor_kwargs"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages[0].content[0]",
        ),
        ({"input": [1, "x"]}, "input[0]"),
        ({"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "x", "truncation_side": "middle"}, "truncation_side"),
        ({"input": "x", "prompt_name": "query"}, "prompt_name"),
        ({"input": [[1]] * 129, "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "x", "embed_dtype": "fp8_e4m3"}, "embed_dtype"),
    ],
)
def test_what_cannot_be_embedded_is_named(embedding, fields, param):
    async def test(w):
        answer = await raw(w, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    embedding(test)


def cosine(one, other):
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize(
    ("left", "right"),
    [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"), ("query", "items")],
)
def test_scores_are_asked_for_in_every_spelling(embedding, tokenizer, left, right):
    async def test(w):
        texts = ["hello world", "stop here", "fox"]
        vectors = [(len(ids), ids[0], ids[-1], 1) for ids in (tokenizer.encode(text).ids for text in texts)]
        one, *others = texts
        document = {"content": [{"type": "text", "text": others[0]}]}
        for path in ("/score", "/v1/score"):
            asked = {left: one, right: [document, others[1]], "use_activation": True}
            answer = (await w.client.post(path, json=asked)).json()
            scores = [cosine(vectors[0], vector) for vector in vectors[1:]]
            assert [item["score"] for item in answer["data"]] == pytest.approx(scores, abs=1e-6)
        pairs = (await w.client.post("/score", json={left: texts, right: texts})).json()
        assert [item["score"] for item in pairs["data"]] == pytest.approx([1, 1, 1], abs=1e-6)

    embedding(test)


def test_rankings_are_asked_for_at_every_path_and_in_every_shape(embedding):
    async def test(w):
        documents = ["the quick brown fox jumps over the lazy dog", {"text": "stop here"}, "fox"]
        for path in ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"):
            answer = (await w.client.post(path, json={"query": "fox", "documents": documents, "top_n": 2})).json()
            first, second = answer["results"]
            assert (first["index"], first["document"], first["relevance_score"]) == (2, {"text": "fox"}, 1.0)
            assert second["relevance_score"] < 1
        bare = {"query": "fox", "documents": documents, "return_documents": False}
        assert "document" not in (await w.client.post("/v2/rerank", json=bare)).json()["results"][0]
        tei = {"query": "fox", "texts": ["stop here", "fox"], "return_text": True, "truncate": True}
        ranked = (await w.client.post("/rerank", json=tei)).json()
        assert ranked[0] == {"index": 1, "score": 1.0, "text": "fox"}

    embedding(test)


def test_documents_are_cut_and_the_query_is_not(embedding, tokenizer):
    async def test(w):
        long = "the quick brown fox jumps over the lazy dog"
        asked = {"query": long, "documents": [long, long], "max_tokens_per_doc": 2, "priority": 0}
        answer = (await w.client.post("/v2/rerank", json=asked)).json()
        assert answer["usage"]["prompt_tokens"] == len(tokenizer.encode(long).ids) + 2 + 2

    embedding(test)


def test_texts_that_a_ranking_repeats_are_written_beside_the_event_loop(embedding, monkeypatch):
    threads = []

    def written(text):
        threads.append(threading.current_thread().name)
        return json_text(text)

    async def test(w):
        monkeypatch.setattr("quire.frontend.http.score.routes.json_text", written)
        texts = ["hello", '\n"é' * STEP_CHARS]
        for fields in ({"documents": texts}, {"texts": texts, "return_text": True}):
            body = {"query": "a", "truncate_prompt_tokens": 3, **fields}
            answer = await w.client.post("/rerank", json=body, timeout=GUARD)
            ranked = answer.json() if "texts" in fields else answer.json()["results"]
            shown = [(one["index"], one.get("document", one)["text"]) for one in ranked]
            assert sorted(shown) == list(enumerate(texts))
        assert all(name.startswith("answers") for name in threads)
        assert len(threads) == 4

    embedding(test)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/score", {}, "text_1"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": "a", "queries": "b", "items": "c"}, "queries"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": [{"text": "b", "content": "c"}]}, "text_2[0]"),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [1]}, "label_token_ids"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}, "texts"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
    ],
)
def test_what_cannot_be_scored_is_named(embedding, path, fields, param):
    async def test(w):
        answer = await w.client.post(path, json=fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    embedding(test)


def test_readers_that_do_not_read_hold_no_more_than_a_budget(embedding):
    async def test(w):
        scheduler, budget = w.scheduler, w.server.context.answer_budget
        wide = np.random.default_rng(0).random(400_000, np.float32)  # 8 MB of JSON: more than sockets take

        def script(submit):
            finish = Finish(submit.number, 0, "stop", Usage(1, 0, 0, 0.0, 0.0, 0.0), 0)
            vectors = (EmbeddingVector(submit.number, wide.tobytes()),)
            scheduler.send(Outputs(scheduler.epoch, b"", b"", b"", b"", (finish,), (), vectors))

        scheduler.script = script
        body = b'{"input": [1], "normalize": false}'
        lines = ("POST /v1/embeddings HTTP/1.1", "Host: localhost", "Content-Type: application/json")
        head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode()
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.setblocking(False)
            await asyncio.get_running_loop().sock_connect(stuck, ("127.0.0.1", w.port))
            await asyncio.get_running_loop().sock_sendall(stuck, head + body)
            await w.until(lambda: budget.used)
            budget.max_bytes = 12 << 20
            for form in ("float", "base64", "bytes"):
                refused = await raw(w, input=[1], encoding_format=form)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
                assert "retry-after" in refused.headers
        await w.until(lambda: budget.used == 0)  # its connection is gone
        answered = (await raw(w, input=[1])).json()["data"][0]["embedding"]
        assert np.array_equal(np.array(answered, np.float32), wide)
        assert budget.used == 0

    embedding(test)
