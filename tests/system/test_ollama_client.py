"""Ollama's own Python client against a running engine: it must parse whatever we say."""

import json

import httpx
import ollama
import pytest
from parts.clock import GUARD

USER = {"role": "user", "content": "Return the last item of a list."}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
GREEDY = {"temperature": 0, "num_predict": 12, "num_ctx": 4096}


@pytest.fixture(scope="module")
def client(shared_engine):
    return ollama.Client(host=f"http://{shared_engine.http}", timeout=GUARD)


@pytest.fixture(scope="module")
def model(client) -> str:
    return client.list().models[0].model


def test_what_is_served_is_listed_shown_and_running(client, model, shared_engine):
    assert model.endswith(":latest")
    (listed,), (running,) = client.list().models, client.ps().models
    assert listed.model == running.model == model
    assert listed.size > 0
    assert running.context_length == client.show(model).modelinfo["llama.context_length"] > 0
    shown = client.show(model.removesuffix(":latest"))
    assert "completion" in shown.capabilities
    assert "temperature" in shown.parameters
    version = httpx.get(f"http://{shared_engine.http}/api/version", trust_env=False).json()["version"]
    assert [part.isdecimal() for part in version.split(".")] == [True] * 3


def test_a_chat_whole_and_streamed_says_the_same_as_openais(client, model, shared_engine):
    whole = client.chat(model, [USER], options=GREEDY)
    pieces = list(client.chat(model, [USER], options=GREEDY, stream=True))
    text = whole.message.content
    assert "".join(piece.message.content for piece in pieces) == text != ""
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for last in (whole, pieces[-1]):
        assert (last.done_reason, last.eval_count) == ("length", 12)
        assert last.prompt_eval_count > 0
        assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0
    fields = {"messages": [USER], "temperature": 0, "max_tokens": 12}
    theirs = httpx.post(f"http://{shared_engine.http}/v1/chat/completions", json=fields, trust_env=False).json()
    assert theirs["choices"][0]["message"]["content"] == text


def test_a_stream_is_lines_of_json_and_names_what_was_dropped(model, shared_engine):
    body = {"model": model, "messages": [USER], "options": GREEDY}
    answer = httpx.post(f"http://{shared_engine.http}/api/chat", json=body, trust_env=False, timeout=GUARD)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["x-quire-ignored"].split(", ")[0] == "options.num_ctx"
    assert all(json.loads(line)["model"] == model for line in answer.text.splitlines())


def test_a_format_holds(client, model):
    whole = client.chat(model, [USER], format=SCHEMA, options={"num_predict": 64})
    pieces = client.generate(model, "A city.", format=SCHEMA, options={"num_predict": 64}, stream=True)
    for text in (whole.message.content, "".join(piece.response for piece in pieces)):
        said = json.loads(text)
        assert said["city"] in ("Oslo", "Rome")
        assert 1 <= said["days"] <= 9
    options = {"num_predict": 4, "seed": 1}
    assert client.generate(model, "x", format="json", options=options).response.startswith("{")


def test_generate_takes_a_raw_prompt_a_system_and_nothing(client, model, shared_engine):
    raw = client.generate(model, "def add(a, b):", raw=True, options=GREEDY)
    fields = {"prompt": "def add(a, b):", "temperature": 0, "max_tokens": 12}
    theirs = httpx.post(f"http://{shared_engine.http}/v1/completions", json=fields, trust_env=False).json()
    assert raw.response == theirs["choices"][0]["text"]
    chat = client.chat(model, [{"role": "system", "content": "Be brief."}, USER], options=GREEDY)
    said = client.generate(model, USER["content"], system="Be brief.", options=GREEDY)
    assert (said.response, said.prompt_eval_count) == (chat.message.content, chat.prompt_eval_count)
    assert client.generate(model).done_reason == "load"
    assert client.generate(model, keep_alive=0).done_reason == "unload"
    assert client.chat(model, keep_alive="0s").done_reason == "unload"
    assert client.chat(model, [USER], options=GREEDY).message.content


def test_a_stop_and_logprobs(client, model):
    said = client.generate(model, "def add(a, b):", raw=True, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(said.logprobs) == 12
    assert all(len(one.top_logprobs) == 2 for one in said.logprobs)
    text = said.response
    stop = text[len(text) // 2 :][:2]
    cut = client.generate(model, "def add(a, b):", raw=True, options=GREEDY | {"stop": [stop]})
    assert (cut.response, cut.done_reason) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize(
    ("call", "status", "words"),
    [
        (lambda client, model: client.chat("nobody", [USER]), 404, "'nobody' is not served here"),
        (lambda client, model: client.show("nobody"), 404, "'nobody' is not served here"),
        (lambda client, model: list(client.chat("nobody", [USER], stream=True)), 404, "is not served here"),
        (lambda client, model: client.pull("nobody"), 400, "/api/pull is not offered"),
        (lambda client, model: client.push("nobody"), 400, "/api/push is not offered"),
        (lambda client, model: client.create("nobody", from_=model), 400, "/api/create is not offered"),
        (lambda client, model: client.copy(model, "nobody"), 400, "/api/copy is not offered"),
        (lambda client, model: client.delete(model), 400, "/api/delete is not offered"),
        (lambda client, model: client.chat(model, [USER | {"images": ["aGVsbG8="]}]), 400, "messages[0].images"),
        (lambda client, model: client.generate(model, "x", images=["aGVsbG8="]), 400, "images[0]: is an image"),
        (lambda client, model: client.generate(model, "x", template="{{ .Prompt }}"), 400, "template"),
        (lambda client, model: client.generate(model, "x", context=[1, 2]), 400, "send the conversation to /api/chat"),
        (lambda client, model: client.generate(model, "x", options={"mirostat": 2}), 400, "options.mirostat"),
        (lambda client, model: client.generate(model, "x", options={"temperature": 9}), 400, "temperature"),
        (lambda client, model: client.embed(model, "x"), 400, "generates here"),
    ],
)
def test_a_refusal_has_ollamas_shape_and_says_why(client, model, call, status, words):
    with pytest.raises(ollama.ResponseError) as caught:
        call(client, model)
    assert caught.value.status_code == status
    assert words in caught.value.error


def test_vectors_are_those_of_openais_route(embedding_engine):
    client = ollama.Client(host=f"http://{embedding_engine.http}", timeout=GUARD)
    texts = ["one text", "another"]
    found = client.embed("minilm:latest", texts)
    fields = {"model": "minilm", "input": texts}
    theirs = httpx.post(f"http://{embedding_engine.http}/v1/embeddings", json=fields, trust_env=False).json()
    assert [list(one) for one in found.embeddings] == [item["embedding"] for item in theirs["data"]]
    assert found.prompt_eval_count == theirs["usage"]["prompt_tokens"]
    assert list(client.embeddings("minilm", "one text").embedding) == list(found.embeddings[0])
    assert len(client.embed("minilm", "one text", dimensions=16).embeddings[0]) == 16
    long = "word " * 2000
    assert client.embed("minilm", long).prompt_eval_count == client.show("minilm").modelinfo["bert.context_length"]
    with pytest.raises(ollama.ResponseError, match="the context of 256 tokens"):
        client.embed("minilm", long, truncate=False)
    assert client.show("minilm").capabilities == ["embedding"]
