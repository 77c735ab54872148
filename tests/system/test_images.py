"""Pictures through real engines: tokens equal to those of transformers, whatever is cut, shared or refused."""

import base64
import json
import urllib.error
import urllib.request

import pytest
from noise_pictures import data_url, picture, png
from parts.clock import eventually
from picture_chats import CHATS, NUM_TOKENS, A, B, answer, answer_all, expected_of, openai_content, request
from tiny_qwen3_vl import TEXT, Reference, write_checkpoint
from tokenizers import Tokenizer

from quire.proto.api import Chat, ChatMessage, Delta, Finished, GenerateRequest, ImagePart, RequestError, TextPart
from quire.proto.client import Client

ONE_PAGE = 64 * 3 * TEXT["hidden_size"] * 4
"""Bytes of a page of encoder memory: rows for 64 tokens, of an embedding and what two layers add, in float32."""
BLOCK = 8 * 3 * 2 * 2 * 16 * 4
"""Bytes of 8 tokens: 3 layers, keys and values, 2 heads of 16, float32."""
ENGINES = {
    "whole": ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"),
    "chunked": ("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--block-size", "8"),
    "one_item": ("--mm-encoder-cache-bytes", str(ONE_PAGE), "--max-num-encoder-patches", "256"),
    "preempted": ("--kv-cache-memory-bytes", str(40 * BLOCK), "--max-num-seqs", "8", "--block-size", "8"),
    "two_ranks": ("--tensor-parallel-size", "2"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def expected(model):
    """Chat -> [the number of its prompt's tokens, the tokens that follow]."""
    return expected_of(model, Reference, CHATS)


def post(engine, path, body):
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{engine.http}{path}", data, headers)) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


QUICK = {"chunked", "preempted"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in ENGINES]
)
def test_answers_are_those_of_transformers_however_they_are_scheduled(serve, model, expected, name):
    engine = serve(str(model), *ENGINES[name])
    num_preemptions = answer_all(engine, CHATS, expected, name == "preempted")
    assert (num_preemptions > 0) == (name == "preempted")
    eventually(engine.idle)
    engine.stop()


def test_without_its_tower_a_model_answers_texts_alike_and_refuses_pictures(serve, model, expected):
    engine = serve(str(model), "--language-model-only")
    assert list(answer(engine, CHATS["text"])[:2]) == expected["text"]
    with pytest.raises(RequestError, match="image") as refused:
        engine.client.generate(request(CHATS["first"]))
    assert refused.value.reason == "UNSUPPORTED"
    engine.stop()


@pytest.fixture(scope="module")
def engine(serve, model):
    return serve(str(model), "--frontends", "2", "--block-size", "8")


def test_every_door_takes_a_picture_and_counts_its_tokens(engine, model, expected):
    num_prompt, tokens = expected["first"]
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    text = tokenizer.decode(tokens)
    body = {"model": "x", "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    body["model"] = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]
    messages = [{"role": "user", "content": openai_content(CHATS["first"])}]
    status, found = post(engine, "/v1/chat/completions", body | {"messages": messages})
    assert (status, found["choices"][0]["message"]["content"]) == (200, text), found
    assert found["usage"]["prompt_tokens"] == num_prompt
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(A)).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": CHATS["first"][1]}]
    status, found = post(engine, "/v1/messages", body | {"messages": [{"role": "user", "content": content}]})
    assert (status, found["content"][0]["text"]) == (200, text), found
    content = [{"type": "input_image", "image_url": data_url(A)}, {"type": "input_text", "text": CHATS["first"][1]}]
    fields = {name: value for name, value in body.items() if name not in ("max_tokens", "ignore_eos")}
    given = fields | {"max_output_tokens": NUM_TOKENS, "input": [{"role": "user", "content": content}]}
    status, found = post(engine, "/v1/responses", given)
    assert status == 200, found
    assert found["usage"]["input_tokens"] == num_prompt


def test_a_picture_sent_again_is_neither_encoded_nor_prefilled_again(engine, expected):
    def cached(name):
        (finished,) = [event for event in engine.client.stream(request(CHATS[name])) if isinstance(event, Finished)]
        return finished.usage.cached_tokens

    cached("adjacent")
    cached("first")
    assert cached("adjacent") >= expected["adjacent"][0] - 8
    assert cached("other") <= 8, "another picture's blocks are not those of the first"
    assert cached("other") >= expected["other"][0] - 8


def test_each_of_several_answers_to_a_picture_is_that_of_transformers(engine, expected):
    found = [[], [], []]
    adjacent = request(CHATS["adjacent"]).input
    drawn = GenerateRequest(input=adjacent, temperature=1, top_k=1, n=3, max_tokens=NUM_TOKENS, ignore_eos=True)
    for event in engine.client.stream(drawn):
        if isinstance(event, Delta):
            found[event.output_index] += event.token_ids
    assert found == [expected["adjacent"][1]] * 3


def test_a_uuid_names_the_picture_of_its_own_key_and_salt_alone(serve, model, tmp_path):
    (tmp_path / "keys").write_text("key-of-lion\nkey-of-tiger\n")
    engine = serve(str(model), "--api-key-file", str(tmp_path / "keys"))
    lion, tiger = (Client(engine.target, api_key=f"key-of-{name}") for name in ("lion", "tiger"))

    def seen(client, salt=None, **image):
        parts = [ImagePart(uuid="camera-1", **image), TextPart("what do you see")]
        asked = GenerateRequest(input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=8, cache_salt=salt)
        return client.generate(asked).outputs[0].text

    with lion, tiger:
        of_lion = seen(lion, data=png(A))
        for stranger, salt in ((tiger, None), (lion, "salt")):
            with pytest.raises(RequestError, match="send its bytes again") as refused:
                seen(stranger, salt)
            assert refused.value.reason == "UNKNOWN_MEDIA"
        of_tiger = seen(tiger, data=png(B))
        assert of_lion != of_tiger
        assert (seen(lion), seen(tiger)) == (of_lion, of_tiger)
    engine.stop()


def test_a_text_names_no_place_of_a_picture(engine):
    parts = [TextPart("<|vision_start|><|image_pad|><|vision_end|>"), ImagePart(data=png(A))]
    asked = GenerateRequest(input=Chat([ChatMessage("user", parts)]), temperature=0, max_tokens=4)
    assert engine.client.generate(asked).outputs[0].finished.usage.completion_tokens <= 4


BAD = {
    "truncated": png(A)[:100],
    "no more than a beginning": b"\x89PNG and no more",
    "a page": b"<html>not here</html>",
    "no pixels": png(A).replace(b"IHDR" + bytes([0, 0, 0, 96]), b"IHDR" + bytes(4)),
    "more pixels than are taken": png(A).replace(b"IHDR" + bytes([0, 0, 0, 96]), b"IHDR" + bytes([0, 1, 134, 160])),
    "more than two hundred times as wide as high": png(picture(804, 4, 3)),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_pictures_cost_their_own_request_the_same_error_through_both_doors(engine, kind):
    asked = GenerateRequest(
        input=Chat([ChatMessage("user", [TextPart("see"), ImagePart(data=BAD[kind])])]), max_tokens=4
    )
    with pytest.raises(RequestError) as refused:
        engine.client.generate(asked)
    assert (refused.value.reason, refused.value.field) == ("INVALID_MEDIA", "chat.messages[0].content_parts[1]")
    model = json.load(urllib.request.urlopen(f"http://{engine.http}/v1/models"))["data"][0]["id"]
    url = "data:image/png;base64," + base64.b64encode(BAD[kind]).decode()
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    status, found = post(engine, "/v1/chat/completions", body)
    assert (status, found["error"]["param"]) == (400, "messages[0].content[1]"), found
    said = refused.value.message.partition(": ")[2] or refused.value.message
    assert said in found["error"]["message"]
    assert answer(engine, CHATS["text"])


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(url="http://127.0.0.1/picture.png"),
        ImagePart(url="file:///etc/passwd"),
        ImagePart(url="data:image/png;base64,####"),
        ImagePart(),
    ],
)
def test_a_picture_that_is_not_got_costs_its_own_request_a_typed_error(engine, part):
    asked = GenerateRequest(input=Chat([ChatMessage("user", [part])]), temperature=0, max_tokens=4)
    with pytest.raises(RequestError) as refused:
        engine.client.generate(asked)
    assert "content_parts[0]" in refused.value.field, refused.value
    assert answer(engine, CHATS["text"])


def test_a_text_model_refuses_a_picture_with_the_remedy(shared_engine):
    with pytest.raises(RequestError, match="image") as refused:
        shared_engine.client.generate(request(CHATS["first"]))
    assert refused.value.reason == "UNSUPPORTED"
