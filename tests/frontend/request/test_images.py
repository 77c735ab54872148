"""Chats with images on their way to the scheduler: what stands where, what is refused, and when the pixels may go."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from quire.frontend.request import prompt_tokenizer
from quire.proto.api import Chat, ChatMessage, GenerateRequest, ImagePart, RequestError, TextPart
from quire.proto.messages.media import media_file
from quire.proto.transport.wire import unpack

sys.path.insert(0, str(Path(__file__).parents[1]))  # collected in importlib mode, yet they share modules

from pictures import base64_of, data_url, png

PLACEHOLDER = "<|image_pad|>"
USED = ("media_store_used_bytes",)


def chat(*content: str | bytes | ImagePart | TextPart, role: str = "user") -> Chat:
    kinds = {str: TextPart, bytes: lambda data: ImagePart(data=data)}
    return Chat([ChatMessage(role, [kinds.get(type(part), lambda same: same)(part) for part in content])])


def request(*content: str | bytes | ImagePart | TextPart, **fields: object) -> GenerateRequest:
    return GenerateRequest(input=chat(*content), **{"max_tokens": 1, **fields})


@pytest.fixture(scope="module")
def sight_tokenizer(sight_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(sight_dir / "tokenizer.json"))


@pytest.fixture
def seeing(serving, sight):
    """`async with seeing(**config) as s:`, whose scheduler answers every request at once."""
    return lambda **changes: serving(**{**sight, **changes})


def answers(s) -> None:
    s.scheduler.script = lambda submit: s.scheduler.answer(submit.number, [75])


def tokens_of(submit) -> list[int]:
    return unpack(submit.prompt).tolist()


def test_images_are_runs_of_placeholders_whose_pixels_are_in_files(seeing, sight_tokenizer, tmp_path):
    async def main():
        async with seeing() as s:
            answers(s)
            answer = await s.client.generate(request("one ", png(64, 64), " two ", png(96, 64, "blue"), "?"))
            submit = await s.scheduler.submitted()
            ids = tokens_of(submit)
            text = "<|turn|>user\none <|vision_start|>{}<|vision_end|> two <|vision_start|>{}<|vision_end|>?<|end|>\n"
            whole = f"{text}<|turn|>assistant\n".format(4 * PLACEHOLDER, 6 * PLACEHOLDER)
            assert sight_tokenizer.decode(ids, skip_special_tokens=False) == whole
            placeholder = sight_tokenizer.token_to_id(PLACEHOLDER)
            for media, grid, num_bytes in zip(
                submit.media, [(1, 4, 4), (1, 4, 6)], [64 * 64 * 3, 96 * 64 * 3], strict=True
            ):
                span = media.span
                assert ids[span.start : span.stop] == [placeholder] * span.num_tokens
                assert placeholder not in (ids[span.start - 1], ids[span.stop])
                assert (span.grid, media.num_bytes) == (grid, num_bytes)
                assert (tmp_path / "media" / media_file(media.folder, media.digest)).stat().st_size == num_bytes
            assert submit.media[0].digest != submit.media[1].digest
            assert answer.prompt_tokens == len(ids)
            tokens = await s.client.tokenize(chat("one ", png(64, 64), " two ", png(96, 64, "blue"), "?"))
            assert list(tokens.token_ids) == ids

    asyncio.run(main())


def test_tokens_are_counted_beyond_the_context_and_up_to_a_bound(seeing, monkeypatch):
    many = chat("one ", *(png(320, 320, f"#0000{number}0") for number in range(9)))

    async def main():
        async with seeing() as s:
            num_tokens = len((await s.client.tokenize(many)).token_ids)
            assert num_tokens > 512  # the model's context
            monkeypatch.setattr(prompt_tokenizer, "MAX_COUNTED", num_tokens - 1)
            with pytest.raises(RequestError, match=r"content_parts\[9\]: 9 images and videos .* take 576") as caught:
                await s.client.tokenize(many)
            assert caught.value.reason == "CONTEXT_LENGTH_EXCEEDED"

    asyncio.run(main())


@pytest.mark.parametrize(
    "texts",
    [[PLACEHOLDER], ["<|image", "_pad|>"], [f"<|vision_start|>{PLACEHOLDER}<|vision_end|>"], [" <|ima", "ge_pad|> "]],
)
def test_a_placeholder_that_a_user_spells_is_text(seeing, sight_tokenizer, texts):
    async def main():
        async with seeing() as s:
            answers(s)
            await s.client.generate(request(*texts, png(), *texts))
            submit = await s.scheduler.submitted()
            ids = tokens_of(submit)
            (media,) = submit.media
            placeholder = sight_tokenizer.token_to_id(PLACEHOLDER)
            assert [at for at, token in enumerate(ids) if token == placeholder] == list(
                range(media.span.start, media.span.stop)
            )
            rest = [token for token in ids if token != placeholder]
            text = "".join(texts)
            whole = f"<|turn|>user\n{text}<|vision_start|><|vision_end|>{text}<|end|>\n<|turn|>assistant\n"
            assert sight_tokenizer.decode(rest, skip_special_tokens=False) == whole

    asyncio.run(main())


def test_texts_without_images_are_what_they_were(seeing, sight_tokenizer):
    async def main():
        async with seeing() as s:
            answers(s)
            await s.client.generate(request("a", "b"))
            await s.client.generate(GenerateRequest(input=Chat([ChatMessage("user", "ab")]), max_tokens=1))
            parts, whole = s.scheduler.submits
            assert parts.prompt == whole.prompt
            assert parts.media == ()

    asyncio.run(main())


@pytest.mark.parametrize("role", ["user", "tool"])
def test_an_image_may_be_the_last_thing_before_an_answer_that_goes_on(seeing, sight_tokenizer, role):
    async def main():
        async with seeing() as s:
            answers(s)
            turn = ChatMessage(role, [TextPart("see "), ImagePart(data=png())], tool_call_id="c" * (role == "tool"))
            going_on = ChatMessage("assistant", "It is")
            asked = Chat([turn, going_on], continue_final_message=True)
            await s.client.generate(GenerateRequest(input=asked, max_tokens=1))
            shown = sight_tokenizer.decode(tokens_of(await s.scheduler.submitted()), skip_special_tokens=False)
            assert shown.endswith("<|vision_end|><|end|>\n<|turn|>assistant\nIt is")

    asyncio.run(main())


REFUSED = {
    "not in the text model": ({"media": None}, request(png()), "content_parts[0]", "UNSUPPORTED", "reads text alone"),
    "too many": (
        {"limit_mm_per_prompt": {"image": 1}},
        request(b"no image", "x", b"none either"),
        "content_parts[2]",
        "INVALID_PARAMETER",
        "is number 2 of 2 images, and a prompt may have 1; send fewer (--limit-mm-per-prompt)",
    ),
    "none at all": (
        {"limit_mm_per_prompt": {"image": 0}},
        request(png()),
        "content_parts[0]",
        "INVALID_PARAMETER",
        "is an image, and this server takes none; leave it out (--limit-mm-per-prompt)",
    ),
    "cut": ({}, request(png(), truncate_prompt_tokens=5), "truncate_prompt_tokens", "UNSUPPORTED", "leave it unset"),
    "by the system": (
        {},
        GenerateRequest(input=chat(png(), role="system")),
        "content_parts",
        "UNSUPPORTED",
        "which system messages do not",
    ),
    "from the web": (
        {},
        request(ImagePart(url="http://192.168.0.1/cat.png?key=secret")),
        "content_parts[0]",
        "",
        "allowed_media_domains",
    ),
    "from the disk": (
        {},
        request(ImagePart(url="file:///etc/passwd")),
        "content_parts[0]",
        "",
        "allowed_local_media_path",
    ),
    "unknown": ({}, request(ImagePart(uuid="cat")), "content_parts[0]", "UNKNOWN_MEDIA", "send its bytes again"),
    "too long": (
        {},
        request("x" * 450, png(256, 256)),
        "content_parts[1]",
        "CONTEXT_LENGTH_EXCEEDED",
        "send fewer or smaller ones",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_asked_is_refused_by_name_before_anything_is_submitted(seeing, case):
    config, asked, field, reason, words = REFUSED[case]

    async def main():
        async with seeing(**config) as s:
            with pytest.raises(RequestError) as caught:
                await s.client.generate(asked)
            assert caught.value.field.endswith(field)
            assert caught.value.status in ("INVALID_ARGUMENT", "NOT_FOUND")
            assert reason in (caught.value.reason, "")
            assert words in caught.value.message
            assert "secret" not in caught.value.message
            assert s.scheduler.submits == []
            assert s.figures().get(USED, 0) == 0

    asyncio.run(main())


def test_a_template_that_does_not_show_images_refuses_them_before_they_are_decoded(seeing, tmp_path):
    async def main():
        silent = tmp_path / "silent.jinja"
        silent.write_text("{% for m in messages %}<|turn|>{{ m.role }}<|end|>{% endfor %}")
        async with seeing(chat_template=str(silent)) as s:
            with pytest.raises(RequestError, match=r"places for 0 of 1 images.*--chat-template") as caught:
                await s.client.generate(request(b"no image"))
            assert caught.value.reason == "UNSUPPORTED"

    asyncio.run(main())


@pytest.mark.parametrize("end", ["answer", "refusal", "abort", "error", "lost"])
def test_pixels_stay_until_the_request_ends_however_it_ends(seeing, end):
    async def main():
        async with seeing(resume_window_seconds=1.0) as s:
            asking = asyncio.create_task(s.client.generate(request(png(), max_tokens=9)))
            submit = await s.scheduler.submitted()
            assert s.figures()[USED] > 0
            if end == "answer":
                s.scheduler.answer(submit.number, [75])
                await asking
            elif end == "abort":
                asking.cancel()
            elif end == "lost":
                await s.lose()
            else:
                reason = "rejected" if end == "refusal" else "error"
                error = "QUEUE_FULL" if end == "refusal" else "NUMERICAL"
                s.scheduler.outputs(submit.number, [], [s.scheduler.finish(submit.number, 0, reason, error=error)])
            if end not in ("answer", "abort"):
                with pytest.raises(RequestError):
                    await asking
            await s.until(lambda: s.figures()[USED] == 0)

    asyncio.run(main())


def test_a_new_scheduler_gets_the_same_images_whose_pixels_are_still_there(seeing, tmp_path):
    async def main():
        async with seeing() as s:
            asking = asyncio.create_task(s.client.generate(request("a", png(), "b")))
            old = await s.scheduler.submitted()
            await s.scheduler.__aexit__()
            await s.lose()
            async with s.new_scheduler(s.scheduler.address, life="life-2") as second:
                second.facts = s.scheduler.facts
                new = await second.submitted()
                assert (new.prompt, new.media) == (old.prompt, old.media)
                assert (tmp_path / "media" / media_file(new.media[0].folder, new.media[0].digest)).is_file()
                second.answer(new.number, [75])
                await asking
            await s.scheduler.__aenter__()

    asyncio.run(main())


def test_a_name_stands_for_an_image_within_one_key_and_one_salt(seeing, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-key\nother-key\n")

    async def main():
        async with seeing(api_key="first-key", api_key_file=str(keys)) as s:
            answers(s)
            await s.client.generate(request(ImagePart(data=png(), uuid="cat"), cache_salt="s"))
            await s.client.generate(request(ImagePart(uuid="cat"), cache_salt="s"))
            first, again = s.scheduler.submits
            assert first.media == again.media
            with pytest.raises(RequestError, match="send its bytes again"):
                await s.client.generate(request(ImagePart(uuid="cat")))
            async with type(s.client)(s.target, "other-key") as other:
                with pytest.raises(RequestError, match="send its bytes again"):
                    await other.generate(request(ImagePart(uuid="cat"), cache_salt="s"))

    asyncio.run(main())


def test_a_server_says_what_its_model_takes(seeing, serving):
    async def main():
        async with seeing(limit_mm_per_prompt={"image": 3}) as s:
            info = await s.client.server_info()
            assert (tuple(info.modalities), info.max_images) == (("text", "image"), 3)
        async with serving() as s:
            info = await s.client.server_info()
            assert (tuple(info.modalities), info.max_images) == (("text",), 0)

    asyncio.run(main())


def test_a_frontend_leaves_nothing_behind(seeing, tmp_path):
    async def main():
        async with seeing() as s:
            answers(s)
            await s.client.generate(request(png()))
            (folder,) = (tmp_path / "media").iterdir()
            assert folder.name.startswith("0-")
        assert list((tmp_path / "media").iterdir()) == []

    asyncio.run(main())


def test_no_pixel_and_no_address_of_one_reaches_a_log(seeing, caplog):
    caplog.set_level(logging.DEBUG)
    bad = data_url(b"\x89PNG" + b"x" * 300)

    async def main():
        async with seeing() as s:
            answers(s)
            await s.client.generate(request(ImagePart(url=data_url(png()))))
            for url in (bad, bad + "%"):
                with pytest.raises(RequestError) as caught:
                    await s.client.generate(request(ImagePart(url=url)))
                assert base64_of(b"x" * 30) not in caught.value.message
            assert len(s.scheduler.submits) == 1
        assert base64_of(png())[:40] not in caplog.text
        assert base64_of(b"x" * 30) not in caplog.text

    asyncio.run(main())
