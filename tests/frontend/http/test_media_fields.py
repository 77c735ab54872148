"""Videos, and settings of media, over HTTP: what they mean, and by which name what is wrong is refused."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from quire.frontend.http.openai.chat_types import ChatRequest
from quire.proto.api import MediaSettings, TextPart, VideoPart

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from pictures import base64_of, png

PICTURE = png(96, 64)
FRAMES = f"data:video/jpeg;base64,{base64_of(PICTURE)},{base64_of(PICTURE)}"
VIDEO = {"type": "video_url", "video_url": {"url": FRAMES}}


def asked(*content: object, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 1, **more}


def settings(**more: object) -> MediaSettings:
    body = {"messages": [{"role": "user", "content": "hi"}], **more}
    return msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest).chat().media_settings


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"type": "video_url", "video_url": {"url": "https://a/b.mp4"}}, VideoPart("https://a/b.mp4")),
        ({"type": "video_url", "video_url": "https://a/b.mp4", "uuid": "u"}, VideoPart("https://a/b.mp4", uuid="u")),
        ({"type": "video_url", "video_url": None, "uuid": "u"}, VideoPart(uuid="u")),
        (VIDEO, VideoPart(FRAMES)),
    ],
)
def test_a_part_is_a_video(given, meant):
    body = asked({"type": "text", "text": "see"}, given)
    chat = msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest).chat()
    assert chat.messages[0].content == [TextPart("see"), meant]


def test_settings_mean_the_same_wherever_they_stand():
    assert settings() == settings(mm_processor_kwargs={}, media_io_kwargs={"video": {}}) == MediaSettings()
    assert settings(mm_processor_kwargs={"min_pixels": 9, "max_pixels": 99, "fps": 0.5}) == MediaSettings(9, 99, 0.5)
    assert settings(mm_processor_kwargs={"size": {"shortest_edge": 9, "longest_edge": 99}}) == MediaSettings(9, 99)
    assert settings(mm_processor_kwargs={"num_frames": 4}) == MediaSettings(num_frames=4)
    assert settings(media_io_kwargs={"video": {"num_frames": 4}}) == MediaSettings(num_frames=4)
    assert settings(mm_processor_kwargs={"fps": 2, "do_sample_frames": True}) == MediaSettings(fps=2.0)
    assert settings(media_io_kwargs={"image": {}, "video": {"num_frames": -1, "fps": -1}}) == MediaSettings()
    assert settings(media_io_kwargs={"video": {"num_frames": -1, "fps": 2}}) == MediaSettings(fps=2.0)
    both = {"mm_processor_kwargs": {"fps": 2, "max_pixels": 9}, "media_io_kwargs": {"video": {"fps": 2.0}}}
    assert settings(**both) == MediaSettings(max_pixels=9, fps=2.0)


CHAT = "/v1/chat/completions"
WRONG = [
    ({"mm_processor_kwargs": {"do_resize": False}}, "mm_processor_kwargs.do_resize", "is unknown to this server"),
    ({"mm_processor_kwargs": {"size": {"height": 9}}}, "mm_processor_kwargs.size.height", "is unknown"),
    ({"media_io_kwargs": {"image": {"mode": "L"}}}, "media_io_kwargs.image.mode", "is unknown"),
    ({"media_io_kwargs": {"audio": {}}}, "media_io_kwargs.audio", "is unknown"),
    ({"media_io_kwargs": {"video": {"backend": "x"}}}, "media_io_kwargs.video.backend", "is unknown"),
    ({"mm_processor_kwargs": {"max_pixels": "9"}}, "mm_processor_kwargs.max_pixels", "expected `int"),
    ({"mm_processor_kwargs": [1]}, "mm_processor_kwargs", "expected `object"),
    ({"media_io_kwargs": {"video": {"num_frames": 1.5}}}, "media_io_kwargs.video.num_frames", "expected `int"),
    ({"mm_processor_kwargs": {"max_pixels": 0}}, "mm_processor_kwargs.max_pixels", "must be above 0, got 0"),
    ({"mm_processor_kwargs": {"size": {"longest_edge": -1}}}, "mm_processor_kwargs.size.longest_edge", "above 0"),
    ({"media_io_kwargs": {"video": {"num_frames": -2}}}, "media_io_kwargs.video.num_frames", "must be above 0"),
    ({"mm_processor_kwargs": {"num_frames": -1}}, "mm_processor_kwargs.num_frames", "must be above 0"),
    ({"mm_processor_kwargs": {"max_pixels": 10**400}}, "mm_processor_kwargs.max_pixels", f"must be below {1 << 63}"),
    ({"mm_processor_kwargs": {"min_pixels": 1 << 63}}, "mm_processor_kwargs.min_pixels", f"must be below {1 << 63}"),
    ({"mm_processor_kwargs": {"min_pixels": 1e15}}, "mm_processor_kwargs.min_pixels", "expected `int"),
    ({"media_io_kwargs": {"video": {"num_frames": 10**400}}}, "media_io_kwargs.video.num_frames", "must be below"),
    (
        {"mm_processor_kwargs": {"fps": 2, "do_sample_frames": False}},
        "mm_processor_kwargs.do_sample_frames",
        "is false, but frames of a video file are always sampled; leave it out",
    ),
    ({"mm_processor_kwargs": {"max_frames": 64}}, "mm_processor_kwargs.max_frames", "set num_frames, or fps"),
    ({"mm_processor_kwargs": {"min_frames": 4}}, "mm_processor_kwargs.min_frames", "the model's own"),
    ({"mm_processor_kwargs": {"fps": 0}}, "mm_processor_kwargs.fps", "must be above 0, got 0"),
    (
        {"mm_processor_kwargs": {"min_pixels": 99, "max_pixels": 9}},
        "mm_processor_kwargs.max_pixels",
        "is below min_pixels, 99: got 9",
    ),
    (
        {"mm_processor_kwargs": {"max_pixels": 9, "size": {"longest_edge": 10}}},
        "mm_processor_kwargs.size.longest_edge",
        "is 10, but mm_processor_kwargs.max_pixels is 9; set only one of them",
    ),
    (
        {"mm_processor_kwargs": {"fps": 1}, "media_io_kwargs": {"video": {"fps": 2}}},
        "media_io_kwargs.video.fps",
        "is 2.0, but mm_processor_kwargs.fps is 1.0",
    ),
    (
        {"mm_processor_kwargs": {"fps": 1}, "media_io_kwargs": {"video": {"num_frames": 2}}},
        "media_io_kwargs.video.num_frames",
        "excludes fps; set only one of them",
    ),
]


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/responses"])
def test_wrong_settings_are_refused_by_name(web, sight, path):
    async def main():
        async with web(**sight) as w:
            for more, field, words in WRONG:
                body = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
                response = await w.client.post(path, json=body | more)
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, field), response.text
                assert words in error["message"]
            assert w.scheduler.submits == []

    asyncio.run(main())


OF_MESSAGES = {"model": "tiny", "max_tokens": 1}
REFUSED = [
    (CHAT, asked({"type": "video_url"}), "messages[0].content[0].video_url", "is missing; send the video's address"),
    (CHAT, asked({"type": "video", "video": FRAMES}), "messages[0].content[0].type", "'image_url', 'video_url'"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_video", "video_url": FRAMES}]}]},
        "input[0].content[0].type",
        "/v1/chat/completions takes videos, as 'video_url'",
    ),
    (
        "/v1/messages",
        OF_MESSAGES | {"messages": [{"role": "user", "content": [VIDEO]}]},
        "messages[0].content[0].type",
        "/v1/chat/completions takes videos, as 'video_url'",
    ),
    ("/v1/completions", {"prompt": "hi", "mm_processor_kwargs": {}}, "mm_processor_kwargs", "/v1/chat/completions"),
    ("/v1/completions", {"prompt": "hi", "media_io_kwargs": {}}, "media_io_kwargs", "/v1/chat/completions"),
    ("/tokenize", {"prompt": "hi", "media_io_kwargs": {}}, "media_io_kwargs", "applies to messages only"),
    (
        "/v1/messages",
        OF_MESSAGES | {"messages": [{"role": "user", "content": "hi"}], "mm_processor_kwargs": {}},
        "mm_processor_kwargs",
        "/v1/chat/completions",
    ),
    (f"{CHAT}/render", asked(VIDEO), "messages[0].content[0]", "is no text, and no token ids stand for it"),
    ("/apply-template", asked(VIDEO), "messages[0].content[0]", "is no text, and no token ids stand for it"),
    (
        CHAT,
        {"messages": [{"role": "assistant", "content": [VIDEO]}]},
        "messages[0].content[0]",
        "is a video, which this model does not take",
    ),
]


@pytest.mark.parametrize(("path", "body", "field", "words"), REFUSED)
def test_what_no_door_takes_is_refused_by_name(web, sight, path, body, field, words):
    async def main():
        async with web(**sight) as w:
            response = await w.client.post(path, json=body)
            assert response.status_code == 400, response.text
            assert field in response.text
            assert words in response.text
            assert w.scheduler.submits == []

    asyncio.run(main())


def test_a_text_model_refuses_videos_with_the_remedy(web):
    async def main():
        async with web() as w:
            for path in (CHAT, "/tokenize"):
                response = await w.client.post(path, json=asked(VIDEO))
                assert response.status_code == 400
                assert response.json()["error"]["param"] == "messages[0].content[0]"
                assert "is a video, and this model reads text alone" in response.text

    asyncio.run(main())


def test_a_video_is_the_same_by_whatever_door_and_way_it_comes(web, watch):
    async def main():
        async with web(**watch) as w:
            w.answers([75])
            again = {"type": "video_url", "video_url": FRAMES, "uuid": "clip"}
            for part in (VIDEO, again, {"type": "video_url", "uuid": "clip"}):
                response = await w.client.post(CHAT, json=asked(part))
                assert response.status_code == 200, response.text
            one, other, third = w.scheduler.submits
            assert one.media == other.media == third.media
            assert one.prompt == other.prompt == third.prompt
            tokens = (await w.client.post("/tokenize", json=asked(VIDEO))).json()["tokens"]
            assert len(one.prompt) == 4 * len(tokens)
            card = (await w.client.get("/v1/models")).json()["data"][0]
            assert (card["input_modalities"], card["max_videos"]) == (["text", "image", "video"], 999)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"mm_processor_kwargs": {"min_pixels": 1 << 41}}, "mm_processor_kwargs.min_pixels"),
        ({"mm_processor_kwargs": {"min_pixels": 64 * 32 * 32 + 1}}, "mm_processor_kwargs.min_pixels"),
        (
            {"mm_processor_kwargs": {"min_pixels": 10**17, "max_pixels": 10**17}},
            "mm_processor_kwargs.min_pixels",
        ),
        ({"mm_processor_kwargs": {"min_pixels": 1 << 40, "max_pixels": 1 << 40}}, "mm_processor_kwargs.max_pixels"),
        ({"mm_processor_kwargs": {"size": {"shortest_edge": 10**17}}}, "mm_processor_kwargs.size.shortest_edge"),
        ({"mm_processor_kwargs": {"max_pixels": 1 << 40}}, "mm_processor_kwargs.max_pixels"),
        ({"mm_processor_kwargs": {"size": {"longest_edge": 1 << 40}}}, "mm_processor_kwargs.size.longest_edge"),
    ],
)
def test_settings_that_a_model_cannot_follow_are_refused_by_name(web, watch, more, field):
    async def main():
        async with web(**watch) as w:
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(PICTURE)}"}}
            for part in (VIDEO, picture):
                response = await w.client.post(CHAT, json=asked(part, **more))
                assert (response.status_code, response.json()["error"]["param"]) == (400, field), response.text

    asyncio.run(main())


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"media_io_kwargs": {"video": {"num_frames": 1 << 40}}}, "media_io_kwargs.video.num_frames"),
        ({"media_io_kwargs": {"video": {"fps": 1e-20}}}, "media_io_kwargs.video.fps"),
        ({"mm_processor_kwargs": {"fps": 5e-324}}, "mm_processor_kwargs.fps"),
    ],
)
def test_settings_of_videos_are_refused_beside_a_video_and_mean_nothing_beside_an_image(web, watch, more, field):
    async def main():
        async with web(**watch) as w:
            w.answers([75])
            response = await w.client.post(CHAT, json=asked(VIDEO, **more))
            assert (response.status_code, response.json()["error"]["param"]) == (400, field), response.text
            picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(PICTURE)}"}}
            response = await w.client.post(CHAT, json=asked(picture, **more))
            assert response.status_code == 200, response.text

    asyncio.run(main())


def test_responses_reduce_their_images(web, sight):
    async def main():
        async with web(**sight) as w:
            w.answers([75])
            large = f"data:image/png;base64,{base64_of(png(256, 256))}"
            body = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": large}]}]}
            for most in ({}, {"max_pixels": 4 * 32 * 32}, {"max_pixels": 32 * 32}, {"size": {"longest_edge": 1}}):
                more = {"mm_processor_kwargs": most}
                assert (await w.client.post("/v1/responses", json=body | more)).status_code == 200
            sizes = [submit.media[0].span.num_tokens for submit in w.scheduler.submits]
            assert sizes == [64, 4, 1, 1]  # the model's least, 4 tokens, is lowered with its most

    asyncio.run(main())


@pytest.mark.parametrize(("most", "status"), [(1, 200), (0, 413)])
def test_bodies_may_be_larger_where_the_model_takes_videos(web, watch, most, status):
    async def main():
        async with web(**watch, limit_mm_per_prompt={"video": most}) as w:
            w.answers([75])
            body = {"messages": [{"role": "user", "content": "hi"}], "user": "x" * (65 << 20)}
            assert (await w.client.post(CHAT, json=body)).status_code == status

    asyncio.run(main())
