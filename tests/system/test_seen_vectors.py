"""Vectors of chats with pictures, as Qwen3-VL-Embedding makes them: those of transformers, at both doors."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tiny_onevision
import tiny_qwen3_vl
import torch
from noise_pictures import picture, png
from parts.clock import GUARD, eventually
from picture_chats import messages, openai_content

from quire.proto.api import Chat, ChatMessage, EmbedRequest, ImagePart, RequestError, TextPart, VideoPart

INSTRUCTION = "a quire is a gathering of pages"
A, B = picture(96, 64, 0), picture(150, 70, 1)
CHATS = {
    "a picture": [A],
    "a picture and a text": [A, "what do you see"],
    "several": ["in", B, "this", A, "and in that one", A],
    "a text": ["what do you see in this picture"],
}
FEW = ("--task", "embed", "--max-num-seqs", "8", "--block-size", "8", "--max-num-batched-tokens", "24")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_qwen3_vl.FAMILY.write_checkpoint(tmp_path_factory.mktemp("seen"))


@pytest.fixture(scope="module")
def engine(serve, folder):
    return serve(str(folder), *FEW)


def turns(content, **more):
    """The chat as transformers takes it, and as HTTP does."""
    asked, images, _ = messages(content)
    system = {"role": "system", "content": [{"type": "text", "text": INSTRUCTION}]}
    http = [system, {"role": "user", "content": openai_content(content)}]
    return [system, *asked], images, {"messages": http, "add_generation_prompt": True, **more}


@torch.inference_mode()
def expected(folder, content):
    """The last state of the last token, of length 1, by transformers; and the number of the prompt's tokens."""
    family = tiny_qwen3_vl.FAMILY
    reference = family.reference(folder)
    asked, images, _ = turns(content)
    ids, _ = reference.prompt(asked, images)
    given = torch.tensor([ids])
    model = family.model_class.from_pretrained(folder, dtype=torch.float32).eval()
    kinds = (given == reference.image_id).int()
    media = dict(reference.pixels(images)) if images else {}
    state = model.model(input_ids=given, mm_token_type_ids=kinds, **media).last_hidden_state[0, -1]
    return torch.nn.functional.normalize(state, dim=-1).numpy(), len(ids)


def post(engine, route, body):
    request = urllib.request.Request(
        f"http://{engine.http}{route}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def chat_of(content):
    parts = [TextPart(one) if isinstance(one, str) else ImagePart(data=png(one)) for one in content]
    return Chat([ChatMessage("system", INSTRUCTION), ChatMessage("user", parts)], add_generation_prompt=True)


@pytest.mark.parametrize("name", CHATS)
def test_http_gives_the_vectors_of_transformers(engine, folder, name):
    vector, num_tokens = expected(folder, CHATS[name])
    for _ in range(2):  # the second time out of the cache
        status, found = post(engine, "/v1/embeddings", turns(CHATS[name])[2])
        assert (status, found["usage"]["prompt_tokens"]) == (200, num_tokens)
        np.testing.assert_allclose(found["data"][0]["embedding"], vector, atol=2e-5)
    pooled = post(engine, "/pooling", turns(CHATS[name])[2])[1]["data"][0]["data"]
    np.testing.assert_allclose(pooled, vector, atol=2e-5)


def test_grpc_gives_them_beside_texts_and_token_ids(engine, folder):
    inputs = [chat_of(CHATS["several"]), "a quire", [5, 6, 7], chat_of(CHATS["a text"]), chat_of(CHATS["a picture"])]
    found = engine.client.embed(EmbedRequest(inputs=inputs)).vectors
    for index, name in ((0, "several"), (3, "a text"), (4, "a picture")):
        np.testing.assert_allclose(found[index], expected(folder, CHATS[name])[0], atol=2e-5)
    for index, alone in ((1, "a quire"), (2, [5, 6, 7])):
        np.testing.assert_allclose(
            found[index], engine.client.embed(EmbedRequest(inputs=[alone])).vectors[0], atol=1e-5
        )
    eventually(engine.idle)


def test_the_tokens_around_a_text_stand_around_a_chat_where_they_are_asked_for(engine):
    plain, around = (
        post(engine, "/v1/embeddings", turns(CHATS["a picture"], add_special_tokens=one)[2])[1] for one in (False, True)
    )
    assert plain["data"] == around["data"]  # this tokenizer puts none


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "cuts no prompt with images"),
        ({"mm_processor_kwargs": {"max_pixels": 1 << 30}}, "mm_processor_kwargs.max_pixels", "lower it"),
        (
            {"messages": [{"role": "system", "content": openai_content([A])}]},
            "messages[0].content",
            "system messages",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
            "messages[0].content",
            "",
        ),
        ({"messages": None, "input": "x"}, "add_generation_prompt", "applies to messages only"),
    ],
    ids=lambda _: "",
)
def test_what_is_wrong_is_named(engine, body, param, said):
    status, found = post(engine, "/v1/embeddings", turns(CHATS["a picture"])[2] | body)
    assert status == 400, found
    assert found["error"]["param"].startswith(param), found
    assert said in found["error"]["message"]


def test_a_chat_among_inputs_is_named_with_its_number(engine):
    broken = Chat([ChatMessage("user", [ImagePart(data=b"no picture")])])
    with pytest.raises(RequestError) as caught:
        engine.client.embed(EmbedRequest(inputs=["a", broken]))
    assert caught.value.field == "inputs[1].chat.messages[0].content_parts[0]"
    eventually(engine.idle)


def test_a_model_of_text_alone_refuses_a_picture(serve, folder):
    engine = serve(str(folder), *FEW, "--language-model-only")
    status, found = post(engine, "/v1/embeddings", turns(CHATS["a picture"])[2])
    assert (status, found["error"]["param"]) == (400, "messages[1].content[0]")


@pytest.mark.thorough
@torch.inference_mode()
def test_grids_of_tiles_make_vectors_too(serve, tmp_path):
    folder = tiny_onevision.write_checkpoint(tmp_path)
    engine = serve(str(folder), *FEW)
    reference = tiny_onevision.Reference(folder)
    asked, images, _ = messages([A, "what do you see"])
    inputs = reference.inputs(asked, images)
    state = reference.model.model(**inputs).last_hidden_state[0, -1]
    chat = Chat(
        [ChatMessage("user", [ImagePart(data=png(A)), TextPart("what do you see")])], add_generation_prompt=True
    )
    (found,) = engine.client.embed(EmbedRequest(inputs=[chat])).vectors
    np.testing.assert_allclose(found, torch.nn.functional.normalize(state, dim=-1), atol=2e-5)
    engine.stop()


def test_frames_of_a_video_count(engine):
    """Which tokens and positions they have is proven of answers; here, that they reach a vector."""

    def chat(*seeds):
        video = VideoPart(frames=tuple(png(picture(96, 64, seed)) for seed in seeds))
        return Chat([ChatMessage("user", [video, TextPart("what")])], add_generation_prompt=True)

    asked = EmbedRequest(inputs=[chat(3, 4, 5, 6), chat(3, 4, 5, 7), chat(3, 4, 5, 6)])
    one, other, again = engine.client.embed(asked).vectors
    np.testing.assert_allclose(one, again, atol=1e-5)
    assert not np.allclose(one, other, atol=1e-3)
