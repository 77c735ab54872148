"""The door to all sources: which one a part means, and errors that name the field and give nothing away."""

import asyncio
import base64
import logging
import sys
import time
from pathlib import Path

import pytest
from parts.clock import GUARD

from quire.frontend.limits.byte_budget import ByteBudget
from quire.frontend.media.source import Sources
from quire.proto.api import ImagePart, RequestError, VideoPart
from quire.proto.messages.params import ParameterError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from web_server import WebServer, page

FIELD = "messages[0].content[1].image_url.url"
MOST = 100_000
IMAGE = b"\x89PNG of pixels"
PIXELS = base64.b64encode(bytes(range(250))).decode()


def read(part: ImagePart, seconds: float = GUARD, **opened: object) -> bytes:
    async def main() -> bytes:
        sources = Sources(MOST, **opened)
        try:
            return bytes(await sources.read(part, FIELD, seconds))
        finally:
            await sources.close()

    return asyncio.run(main())


def read_video(part: VideoPart, seconds: float = GUARD, **opened: object) -> bytes | list[bytes]:
    async def main() -> bytes | list[bytes]:
        sources = Sources(MOST, **opened)
        try:
            found = await sources.read_video(part, FIELD, seconds)
            return [bytes(one) for one in found] if isinstance(found, tuple) else bytes(found)
        finally:
            await sources.close()

    return asyncio.run(main())


def refusal(url: str, **opened: object) -> str:
    with pytest.raises(ParameterError) as caught:
        read(ImagePart(url=url), **opened)
    assert caught.value.field == FIELD
    return str(caught.value).removeprefix(f"{FIELD}: ")


@pytest.mark.usefixtures("loopback")
def test_a_part_is_read_from_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(IMAGE)
    large = bytes(MOST)
    assert read(ImagePart(data=IMAGE)) == IMAGE
    assert read(ImagePart(data=large)) == large
    assert read(ImagePart(url="Data:image/png;base64," + base64.b64encode(large).decode())) == large
    assert read(ImagePart(url=f"File://{tmp_path}/a.png"), allowed_local_media_path=str(tmp_path)) == IMAGE
    with WebServer(page(IMAGE)) as server:
        opened = {"allowed_media_domains": [f"*.example:{server.port}"]}
        assert read(ImagePart(url=f"Http://images.example:{server.port}/a.png"), **opened) == IMAGE


@pytest.mark.usefixtures("loopback")
def test_a_video_is_read_from_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(IMAGE)
    encoded = base64.b64encode(IMAGE).decode()
    assert read_video(VideoPart(data=IMAGE)) == IMAGE
    assert read_video(VideoPart(data=bytes(MOST))) == bytes(MOST)
    assert read_video(VideoPart(frames=(bytes(MOST - 1), b"a"))) == [bytes(MOST - 1), b"a"]
    assert read_video(VideoPart(frames=(IMAGE, b"b"))) == [IMAGE, b"b"]
    assert read_video(VideoPart(url=f"data:video/mp4;base64,{encoded}")) == IMAGE
    assert read_video(VideoPart(url=f"data:image/gif;base64,{encoded}")) == IMAGE
    assert read_video(VideoPart(url=f"Data:Video/JPEG;base64,{encoded},YQ==,{encoded}")) == [IMAGE, b"a", IMAGE]
    assert read_video(VideoPart(url=f"file://{tmp_path}/a.mp4"), allowed_local_media_path=str(tmp_path)) == IMAGE
    with WebServer(page(IMAGE)) as server:
        opened = {"allowed_media_domains": [f"*.example:{server.port}"]}
        assert read_video(VideoPart(url=f"http://videos.example:{server.port}/a.mp4"), **opened) == IMAGE


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (VideoPart(uuid="a"), "is empty; give the URL, the bytes or the frames of a video"),
        (VideoPart(data=bytes(MOST + 1)), "has 100001 bytes; at most 100000"),
        (VideoPart(frames=(bytes(MOST), b"a")), "has frames of 100001 bytes; at most 100000"),
        (VideoPart(frames=(b"a", b"")), "frame 1 is empty"),
        (VideoPart(frames=(b"a",) * 5000), "has 5000 frames; at most 4096"),
        (VideoPart(url="data:audio/wav;base64,YQ=="), "is no video in base64; write data:video/mp4;base64,"),
        (VideoPart(url="data:video/jpeg;base64,YQ==,"), "video/jpeg: frame 1: is empty"),
        (VideoPart(url="data:video/jpeg;base64,YQ==,?"), "frame 1: the base64 is cut off"),
        (VideoPart(url="data:video/mp4;base64,YQ==,YQ=="), "the base64 "),
        (VideoPart(url="data:video/jpeg;base64,YQ==" + ",YQ==" * 4096), "has 4097 frames"),
        (
            VideoPart(url="data:video/jpeg;base64," + "A" * 80000 + "," + "A" * 80000),
            "frame 1: with those before it has more than",
        ),
        (VideoPart(url="clip.mp4"), "is no URL that is read here"),
        (VideoPart(url="file:///clip.mp4"), "no file of the server may be read"),
        (VideoPart(url="https://videos.example/clip.mp4"), "nothing is fetched from the web here"),
    ],
)
def test_a_video_that_cannot_be_read_is_refused(part: VideoPart, why: str) -> None:
    with pytest.raises(ParameterError, match=why) as caught:
        read_video(part)
    assert (caught.value.field, caught.value.reason) == (FIELD, "INVALID_MEDIA")


def test_files_and_the_web_are_closed_unless_they_are_opened() -> None:
    why = refusal("file:///etc/hostname")
    assert why == (
        "'file:///etc/hostname': no file of the server may be read (allowed_local_media_path); "
        "send the bytes as a data: URL"
    )
    why = refusal("https://images.example/a.png")
    assert why == (
        "'https://images.example/a.png': nothing is fetched from the web here (allowed_media_domains); "
        "send the bytes as a data: URL"
    )


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (ImagePart(), "is empty"),
        (ImagePart(uuid="a"), "is empty"),
        (ImagePart(data=bytes(MOST + 1)), "has 100001 bytes; at most 100000 are allowed"),
    ],
)
def test_a_part_without_bytes_and_one_with_too_many_are_refused(part: ImagePart, why: str) -> None:
    with pytest.raises(ParameterError, match=why) as caught:
        read(part)
    assert caught.value.field == FIELD


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://images.example/a.png", "ftp: is no URL that is read here"),
        ("javascript:alert(1)", "javascript: is no URL that is read here"),
        ("/etc/passwd", "is no URL that is read here"),
        ("http://images.example/" + "x" * 9000, "the URL has 9022 characters; at most 8192"),
        ("http://images.example/\ud800", "half a character"),
        ("file:///a/\ud800", "half a character"),
    ],
)
def test_what_is_no_url_of_an_image_is_refused(url: str, shown: str) -> None:
    assert shown in refusal(url, allowed_media_domains=["images.example"])


@pytest.mark.parametrize(
    "url",
    [
        PIXELS,
        f"base64,{PIXELS}",
        f"data:{PIXELS}",
        f"data:base64,{PIXELS}",
        f"data:image/png,{PIXELS}",
        f"data:image/png;{PIXELS}",
        f"data:image/png;base64,{PIXELS}!",
        f"data:image/png;base64,{PIXELS}" * 3,
        f"image/png;base64,{PIXELS}",
    ],
)
def test_no_pixel_gets_into_an_error_or_a_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert PIXELS[:8] not in refusal(url) + caplog.text


def test_no_key_gets_into_an_error_and_long_urls_are_cut() -> None:
    for url in (
        "https://user:secret@images.example/a.png?sig=secret#secret",
        "https://images.example/a.png?sig=secret",
        f"https://images.example/{'x' * 200}secret",
    ):
        why = refusal(url)
        assert "secret" not in why
        assert "images.example" in why
        assert len(why) < 250


def test_a_name_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed_media_domains"):
        Sources(MOST, allowed_media_domains=["https://images.example"])
    with pytest.raises(ValueError, match="allowed_local_media_path"):
        Sources(MOST, allowed_local_media_path=str(tmp_path / "missing"))


@pytest.mark.usefixtures("loopback")
def test_what_takes_too_long_is_the_deadline_of_its_field() -> None:
    with WebServer(lambda connection: time.sleep(GUARD)) as server:
        url = f"http://images.example:{server.port}/a.png"
        with pytest.raises(RequestError, match=r"was not fetched within 0\.2 s") as caught:
            read(ImagePart(url=url), allowed_media_domains=[f"images.example:{server.port}"], fetch_seconds=0.2)
        opened = {"allowed_media_domains": [f"images.example:{server.port}"], "fetch_seconds": GUARD}
        with pytest.raises(RequestError, match=r"was not fetched within 0\.3 s"):
            read_video(VideoPart(url=url), video_fetch_seconds=0.3, **opened)
    assert (caught.value.reason, caught.value.field) == ("DEADLINE", FIELD)
    assert caught.value.message.startswith(f"{FIELD}: '{url}': ")


def test_bytes_from_elsewhere_count_as_bytes_of_the_body(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(bytes(MOST))
    part = ImagePart(url=f"file://{tmp_path}/a.png")

    async def main() -> None:
        sources = Sources(MOST, allowed_local_media_path=str(tmp_path))
        budget = ByteBudget(2 * MOST, lambda how: None)
        with budget.body() as body:
            await sources.read(part, FIELD, GUARD)
            assert body.size == budget.used == MOST
            with pytest.raises(RequestError, match="bodies of 100000 bytes") as caught:
                await sources.read(part, FIELD, GUARD)
            assert caught.value.reason == "QUEUE_FULL"
        assert budget.used == 0
        await sources.close()

    asyncio.run(main())
