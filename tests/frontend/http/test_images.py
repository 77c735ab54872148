"""Images over all HTTP doors: every spelling means the same prompt, and what no door takes is refused by name."""

import asyncio
import sys
from base64 import encodebytes
from pathlib import Path

import pytest

from quire.frontend.http.anthropic.late_system import folded
from quire.proto.api import ChatMessage, ImagePart, TextPart

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from pictures import base64_of, data_url, png

PICTURE = png(96, 64)
URL = data_url(PICTURE)
TEXT = "What is it?"
BASE64 = {"type": "base64", "media_type": "image/jpeg", "data": base64_of(PICTURE)}
WRAPPED = encodebytes(PICTURE).decode()
"""Base64 in lines, as programs write it to files."""
ASKED = {"type": "text", "text": TEXT}


def chat(*content: object, role: str = "user") -> dict[str, object]:
    return {"messages": [{"role": role, "content": list(content)}], "max_tokens": 1}


FORMS = {
    "chat": ("/v1/chat/completions", chat({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, ASKED)),
    "chat, an older spelling": ("/v1/chat/completions", chat({"type": "image_url", "image_url": URL}, ASKED)),
    "responses": (
        "/v1/responses",
        {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": URL, "detail": "auto"},
                        {"type": "input_text", "text": TEXT},
                    ],
                }
            ]
        },
    ),
    "messages": ("/v1/messages", {"model": "tiny"} | chat({"type": "image", "source": BASE64}, ASKED)),
    "messages, in lines": (
        "/v1/messages",
        {"model": "tiny"} | chat({"type": "image", "source": BASE64 | {"data": WRAPPED}}, ASKED),
    ),
    "ollama's chat": (
        "/api/chat",
        {"model": "tiny", "messages": [{"role": "user", "content": TEXT, "images": [base64_of(PICTURE)]}]},
    ),
    "ollama's generate": ("/api/generate", {"model": "tiny", "prompt": TEXT, "images": [base64_of(PICTURE)]}),
    "ollama's generate, in lines": ("/api/generate", {"model": "tiny", "prompt": TEXT, "images": [WRAPPED]}),
}


@pytest.fixture
def seeing(web, sight):
    return lambda **changes: web(**{**sight, **changes})


def test_an_image_is_the_same_by_whatever_door_it_comes(seeing):
    async def main():
        async with seeing() as w:
            w.answers([75])
            for path, body in FORMS.values():
                response = await w.client.post(path, json=body)
                assert response.status_code == 200, (path, response.text)
            assert len({submit.prompt for submit in w.scheduler.submits}) == 1
            assert len({submit.media for submit in w.scheduler.submits}) == 1
            (media,) = w.scheduler.submits[0].media
            assert media.span.num_tokens == 6

    asyncio.run(main())


def test_a_result_of_a_tool_may_hold_an_image(seeing):
    async def main():
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
        shot = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "image", "source": BASE64}]}
        output = {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_image", "image_url": URL}],
        }
        asked = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        async with seeing() as w:
            w.answers([75])
            turns = [{"role": "user", "content": "look"}, call, {"role": "user", "content": [shot]}]
            body = {"model": "tiny", "max_tokens": 1, "messages": turns}
            assert (await w.client.post("/v1/messages", json=body)).status_code == 200
            items = [{"role": "user", "content": "look"}, asked, output]
            assert (await w.client.post("/v1/responses", json={"input": items})).status_code == 200
            one, other = w.scheduler.submits
            assert (one.prompt, one.media) == (other.prompt, other.media)

    asyncio.run(main())


def test_tokens_of_images_are_counted(seeing):
    async def main():
        async with seeing() as w:
            w.answers([75])
            path, body = FORMS["chat"]
            answer = (await w.client.post(path, json=body)).json()
            tokens = (await w.client.post("/tokenize", json=body)).json()["tokens"]
            _, body = FORMS["messages"]
            counted = (await w.client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
            _, body = FORMS["responses"]
            asked = (await w.client.post("/v1/responses/input_tokens", json=body)).json()["input_tokens"]
            assert len(tokens) == counted == asked
            submit = await w.scheduler.submitted()
            assert len(submit.prompt) == 4 * len(tokens)
            assert answer["usage"]["prompt_tokens"] == 3  # as the scheduler says it

    asyncio.run(main())


def test_an_earlier_response_brings_its_images_along(seeing):
    async def main():
        async with seeing() as w:
            w.answers([75])
            path, body = FORMS["responses"]
            first = (await w.client.post(path, json=body)).json()
            more = {"input": "And what else?", "previous_response_id": first["id"]}
            assert (await w.client.post(path, json=more)).status_code == 200
            one, other = w.scheduler.submits
            assert one.media == other.media

    asyncio.run(main())


IMAGE = {"type": "image_url", "image_url": URL}
KINDS = ("image_embeds", "audio_url", "input_audio", "file")
REFUSED = [
    *(
        ("/v1/chat/completions", chat({"type": kind, kind: {}}), "messages[0].content[0].type", "'image_url'")
        for kind in KINDS
    ),
    ("/v1/chat/completions", chat({"type": "image_url"}), "messages[0].content[0].image_url", "is missing"),
    ("/v1/chat/completions", chat(IMAGE, role="assistant"), "messages[0].content", "send it in one of the user's"),
    ("/v1/chat/completions", chat(ASKED, IMAGE | {"image_url": "cat.png"}), "messages[0].content[1]", "give https://"),
    ("/v1/chat/completions/render", chat(IMAGE), "messages[0].content[0]", "send the chat itself"),
    ("/apply-template", chat(IMAGE), "messages[0].content[0]", "send the chat itself"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f1"}]}]},
        "input[0].content[0].file_id",
        "as a data: URL",
    ),
    (
        "/v1/responses",
        {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": URL}]}]},
        "input[0].content[0].type",
        "'output_text'",
    ),
    ("/v1/responses", FORMS["responses"][1] | {"truncation": "auto"}, "truncation", "leave it out"),
    (
        "/v1/messages",
        {"model": "tiny"} | chat({"type": "image", "source": {"type": "file", "file_id": "f1"}}),
        "messages[0].content[0].source.type",
        "use 'base64', 'url'",
    ),
    (
        "/v1/messages",
        {"model": "tiny"} | chat({"type": "image", "source": BASE64 | {"data": URL}}),
        "messages[0].content[0].source.data",
        "no data: URL",
    ),
    (
        "/api/chat",
        {"model": "tiny", "messages": [{"role": "user", "content": TEXT, "images": ["?"]}]},
        "messages[0].images[0]",
        "is not base64",
    ),
    ("/api/generate", {"model": "tiny", "prompt": TEXT, "raw": True, "images": ["aGk="]}, "images", "leave out raw"),
    ("/api/generate", {"model": "tiny", "prompt": TEXT, "images": ["aGk="]}, "images[0]", "image"),
]


@pytest.mark.parametrize(("path", "body", "field", "words"), REFUSED)
def test_what_is_not_taken_is_refused_by_name(seeing, path, body, field, words):
    async def main():
        async with seeing() as w:
            response = await w.client.post(path, json=body)
            assert response.status_code == 400, response.text
            assert field in response.text
            assert words in response.text
            assert w.scheduler.submits == []

    asyncio.run(main())


@pytest.mark.parametrize("name", FORMS)
def test_a_model_that_reads_text_alone_refuses_images_with_the_remedy(web, name):
    async def main():
        path, body = FORMS[name]
        async with web() as w:
            response = await w.client.post(path, json=body)
            assert response.status_code == 400
            assert "reads text alone; leave it out, or ask a model that takes images" in response.text

    asyncio.run(main())


def test_the_lists_of_models_say_what_they_take(seeing, web):
    async def main():
        async with seeing() as w:
            card = (await w.client.get("/v1/models")).json()["data"][0]
            assert (card["input_modalities"], card["max_images"]) == (["text", "image"], 999)
            assert (await w.client.get("/props")).json()["modalities"]["vision"]
            assert "vision" in (await w.client.post("/api/show", json={"model": "tiny"})).json()["capabilities"]
        async with web() as w:
            card = (await w.client.get("/v1/models")).json()["data"][0]
            assert (card["input_modalities"], card["max_images"]) == (["text"], 0)
            assert not (await w.client.get("/props")).json()["modalities"]["vision"]

    asyncio.run(main())


@pytest.mark.parametrize(("sees", "status"), [(True, 200), (False, 413)])
def test_bodies_may_be_larger_where_the_model_takes_images(seeing, web, sees, status):
    async def main():
        async with (seeing if sees else web)() as w:
            w.answers([75])
            body = {"messages": [{"role": "user", "content": "hi"}], "user": "x" * (9 << 20)}
            assert (await w.client.post("/v1/chat/completions", json=body)).status_code == status

    asyncio.run(main())


def test_a_system_turn_behind_an_image_leaves_the_image_where_it_is():
    image = ImagePart(url=URL)
    turns = [ChatMessage("user", [TextPart("see"), image]), ChatMessage("system", "be brief")]
    assert folded(turns) == [ChatMessage("user", [TextPart("see"), image, TextPart("\n\n"), TextPart("be brief")])]
    turns = [ChatMessage("user", "see"), ChatMessage("user", [image])]
    assert folded(turns) == [ChatMessage("user", [TextPart("see"), TextPart("\n\n"), image])]
