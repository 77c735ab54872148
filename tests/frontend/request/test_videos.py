"""Videos in chats: their places in the prompt, their files, the settings of a request, and what is refused."""

import asyncio
import io
import logging
import sys
from pathlib import Path

import pytest
from PIL import Image
from tokenizers import Tokenizer

from quire.proto.api import (
    Chat,
    ChatMessage,
    ContentPart,
    GenerateRequest,
    ImagePart,
    MediaSettings,
    RequestError,
    TextPart,
    VideoPart,
)
from quire.proto.messages.media import MediaFacts, media_file
from quire.proto.transport.wire import unpack

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from pictures import base64_of, png


def animation(num_frames: int, milliseconds: int) -> bytes:
    """A WebP that shows each of its frames for so long."""
    file = io.BytesIO()
    first, *others = [Image.new("RGB", (32, 32), (3 * index, index, 0)) for index in range(num_frames)]
    first.save(file, "WEBP", save_all=True, append_images=others, duration=milliseconds, lossless=True)
    return file.getvalue()


PLACEHOLDER = "<|video_pad|>"
FRAMES = tuple(png(64, 64, color) for color in ("red", "green", "blue", "black"))
SLOW = animation(80, milliseconds=16_000_000)
CLIP = VideoPart(frames=FRAMES)


def chat(*content: str | ContentPart, **settings: float) -> Chat:
    parts = [TextPart(part) if isinstance(part, str) else part for part in content]
    return Chat([ChatMessage("user", parts)], media_settings=MediaSettings(**settings))


def request(*content: str | ContentPart, **fields: object) -> GenerateRequest:
    return GenerateRequest(input=chat(*content), **{"max_tokens": 1, **fields})


@pytest.fixture
def watching(serving, watch):
    """`async with watching(**config) as s:`, a frontend of a model that takes videos."""
    return lambda **changes: serving(**{**watch, **changes})


@pytest.fixture(scope="module")
def tokenizer(sight_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(sight_dir / "tokenizer.json"))


def answers(s) -> None:
    s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [75])


def test_a_video_is_runs_of_placeholders_whose_frames_are_in_files(watching, tokenizer, tmp_path):
    async def main():
        async with watching() as s:
            answers(s)
            answer = await s.client.generate(request("one ", CLIP, " two ", ImagePart(data=png()), "?"))
            submit = await s.scheduler.submitted()
            ids = unpack(submit.prompt).tolist()
            placeholder = tokenizer.token_to_id(PLACEHOLDER)
            *items, image = submit.media
            assert [media.span.grid for media in items] == [(2, 4, 4)] * 2
            assert image.span.grid == (1, 4, 4)
            places = [at for media in items for at in range(media.span.start, media.span.stop)]
            assert [at for at, token in enumerate(ids) if token == placeholder] == places
            for media in items:
                path = tmp_path / "media" / media_file(media.folder, media.digest)
                assert path.stat().st_size == media.num_bytes == 2 * 64 * 64 * 3
            shown = tokenizer.decode(ids, skip_special_tokens=False)
            assert shown.count(" seconds><|vision_start|>") == 2
            assert answer.prompt_tokens == len(ids)
            tokens = await s.client.tokenize(chat("one ", CLIP, " two ", ImagePart(data=png()), "?"))
            assert list(tokens.token_ids) == ids
            counted = {one.name: one.value for one in s.server.metrics_page.metrics.samples()}
            assert (counted["videos_total"], counted["images_total"]) == (2, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    "texts",
    [
        [PLACEHOLDER],
        ["<|video", "_pad|>"],
        [f"<|vision_start|>{PLACEHOLDER}<|vision_end|>"],
        [f"<1.5 seconds><|vision_start|>{PLACEHOLDER}<|vision_end|>"],
        [" <|vid", "eo_pad|> "],
    ],
)
def test_a_placeholder_that_a_user_spells_is_text(watching, tokenizer, texts):
    async def main():
        async with watching() as s:
            answers(s)
            await s.client.generate(request(*texts, CLIP, *texts))
            submit = await s.scheduler.submitted()
            ids = unpack(submit.prompt).tolist()
            placeholder = tokenizer.token_to_id(PLACEHOLDER)
            places = [at for media in submit.media for at in range(media.span.start, media.span.stop)]
            assert [at for at, token in enumerate(ids) if token == placeholder] == places
            rest = tokenizer.decode([token for token in ids if token != placeholder], skip_special_tokens=False)
            text = "".join(texts)
            assert rest.startswith(f"<|turn|>user\n{text}")
            assert rest.endswith(f"{text}<|end|>\n<|turn|>assistant\n")

    asyncio.run(main())


def test_settings_of_a_request_hold_for_it_alone(watching):
    async def main():
        async with watching() as s:
            answers(s)
            for settings in ({}, {"num_frames": 2}, {"max_pixels": 4 * 32 * 32}, {}):
                await s.client.generate(GenerateRequest(input=chat(CLIP, **settings), max_tokens=1))
            plain, shorter, smaller, again = (submit.media for submit in s.scheduler.submits)
            assert len(shorter) == 1
            assert smaller[0].span.num_tokens < plain[0].span.num_tokens
            assert again == plain

    asyncio.run(main())


REFUSED = {
    "of a model without videos": (
        {"media": MediaFacts(("image",), 4, 16, 64)},
        request(CLIP),
        "content_parts[0]",
        "UNSUPPORTED",
        "send pictures of it as images, or ask a model that takes videos",
    ),
    "of a text model": ({"media": None}, request(CLIP), "content_parts[0]", "UNSUPPORTED", "reads text alone"),
    "too many": (
        {"limit_mm_per_prompt": {"video": 1}},
        request(CLIP, "x", CLIP),
        "content_parts[2]",
        "INVALID_PARAMETER",
        "is number 2 of 2 videos, and a prompt may have 1",
    ),
    "none at all": (
        {"limit_mm_per_prompt": {"video": 0}},
        request(CLIP),
        "content_parts[0]",
        "INVALID_PARAMETER",
        "is a video, and this server takes none",
    ),
    "cut": ({}, request(CLIP, truncate_prompt_tokens=5), "truncate_prompt_tokens", "UNSUPPORTED", "images or videos"),
    "by the system": (
        {},
        GenerateRequest(input=Chat([ChatMessage("system", [CLIP])])),
        "content_parts",
        "UNSUPPORTED",
        "holds a video, which system messages do not",
    ),
    "from the web": (
        {},
        request(VideoPart(url="http://192.168.0.1/cat.mp4?key=secret")),
        "content_parts[0]",
        "",
        "allowed_media_domains",
    ),
    "unknown": ({}, request(VideoPart(uuid="cat")), "content_parts[0]", "UNKNOWN_MEDIA", "send its bytes again"),
    "noise": ({}, request(VideoPart(data=b"noise" * 99)), "content_parts[0]", "INVALID_MEDIA", "is no video"),
    "a frame of noise": (
        {},
        request(VideoPart(frames=(png(), b"noise"))),
        "content_parts[0]",
        "INVALID_MEDIA",
        "that is read here",
    ),
    "larger than the server's": (
        {},
        GenerateRequest(input=chat(CLIP, max_pixels=1 << 40)),
        "media_settings.max_pixels",
        "",
        "lower it",
    ),
    "of half a month": (
        {},
        request("see", VideoPart(data=SLOW)),
        "content_parts[1]",
        "INVALID_MEDIA",
        "at most 1000000 seconds are read",
    ),
    "enlarged without bounds": (
        {},
        GenerateRequest(input=chat(CLIP, min_pixels=10**17, max_pixels=10**17)),
        "chat.media_settings.min_pixels",
        "",
        "must be from 1 to 1099511627776 pixels",
    ),
    **{
        f"{fps:g} frames a second": (
            {},
            GenerateRequest(input=chat(CLIP, fps=fps)),
            "chat.media_settings.fps",
            "",
            "must be from 0.001 to 1000 frames a second",
        )
        for fps in (5e-324, 1e-300, 1e-20, 1001.0)
    },
    "two ways to sample": (
        {},
        GenerateRequest(input=chat(CLIP, fps=1.0, num_frames=4)),
        "media_settings.num_frames",
        "",
        "excludes fps",
    ),
}


@pytest.mark.parametrize("settings", [{"fps": 5e-324}, {"num_frames": 1 << 40}])
def test_settings_of_videos_are_nothing_to_a_request_with_images_alone(watching, settings):
    """They are neither checked, nor part of the name by which an image is found again."""

    async def main():
        async with watching() as s:
            answers(s)
            await s.client.generate(request(ImagePart(data=png(), uuid="cat")))
            asked = chat(ImagePart(uuid="cat"), **settings)
            await s.client.generate(GenerateRequest(input=asked, max_tokens=1))

    asyncio.run(main())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_watched_is_refused_by_name(watching, name):
    config, asked, field, reason, words = REFUSED[name]

    async def main():
        async with watching(**config) as s:
            with pytest.raises(RequestError) as caught:
                await s.client.generate(asked)
            assert field in caught.value.field
            assert words in caught.value.message
            assert reason in ("", caught.value.reason)
            assert s.scheduler.submits == []

    asyncio.run(main())


def test_a_server_says_which_videos_its_model_takes(watching):
    async def main():
        async with watching(limit_mm_per_prompt={"image": 0, "video": 3}) as s:
            info = await s.client.server_info()
            assert (tuple(info.modalities), info.max_images, info.max_videos) == (("text", "video"), 0, 3)
        async with watching() as s:
            info = await s.client.server_info()
            assert (tuple(info.modalities), info.max_videos) == (("text", "image", "video"), 999)

    asyncio.run(main())


def test_a_name_stands_for_a_video(watching):
    async def main():
        async with watching() as s:
            answers(s)
            await s.client.generate(request(VideoPart(frames=FRAMES, uuid="clip")))
            await s.client.generate(request(VideoPart(uuid="clip")))
            first, again = s.scheduler.submits
            assert first.media == again.media

    asyncio.run(main())


def test_no_frame_reaches_a_log(watching, caplog):
    caplog.set_level(logging.DEBUG)
    url = f"data:video/jpeg;base64,{base64_of(FRAMES[0])},{base64_of(FRAMES[1])}"

    async def main():
        async with watching() as s:
            answers(s)
            await s.client.generate(request(VideoPart(url=url)))
            for wrong in (url + "%", url.replace("jpeg", "mp4")):
                with pytest.raises(RequestError) as caught:
                    await s.client.generate(request(VideoPart(url=wrong)))
                assert base64_of(FRAMES[0])[:40] not in caught.value.message
        assert base64_of(FRAMES[0])[:40] not in caplog.text

    asyncio.run(main())
