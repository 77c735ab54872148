"""Videos of requests through real processes into the store, and what becomes of them when something goes wrong."""

import asyncio
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import saved
from loading import FAMILY, LARGEST, VIDEOS, Loading, children, loading, noise, used
from video_files import decoded, pictures, video

from quire.frontend.media.decode import decode_pool
from quire.frontend.media.loader import LoadedMedia
from quire.frontend.media.store import stored_cost
from quire.frontend.sandbox import child_process
from quire.proto.api import ImagePart, VideoPart
from quire.proto.messages.media import media_file

CLIP = video(pictures(40))
LONG = tuple(saved(frame) for frame in pictures(4, 640, 480)) * 50


def test_a_video_is_items_whose_pixels_are_in_files(tmp_path: Path) -> None:
    frames = decoded(CLIP, VIDEOS.sample(40, 10.0))
    height, width = VIDEOS.size(len(frames), 64, 96)
    wanted = [np.asarray(frame.resize((width, height), 3)) for frame in frames]

    async def run() -> None:
        async with loading(tmp_path) as one:
            loaded = await one.load(noise(1), VideoPart(data=CLIP), noise(2))
            assert [part.kind for part in loaded.parts] == ["image", "video", "image"]
            clip = loaded.parts[1]
            assert list(clip.seconds) == VIDEOS.seconds(VIDEOS.sample(40, 10.0), 40, 10.0)
            assert len(clip.items) == 4
            for index, item in enumerate(clip.items):
                assert item.grid == (2, height // 16, width // 16)
                assert item.num_tokens == height * width // 1024
                stored = (tmp_path / media_file(item.folder, item.digest)).read_bytes()
                assert stored == np.stack(wanted[2 * index : 2 * index + 2]).tobytes()
            assert used(one) == sum(item.cost for item in loaded.items)
            loaded.release()
            assert used(one) == 0
            one.child().send_signal(signal.SIGSTOP)  # now nobody could decode
            again = await one.load(VideoPart(data=CLIP))
            assert again.parts == (clip,)
            one.child().send_signal(signal.SIGCONT)

    asyncio.run(run())


def test_pairs_of_frames_that_were_seen_are_the_same_items(tmp_path: Path) -> None:
    frames = tuple(saved(frame) for frame in pictures(8))

    async def run() -> None:
        async with loading(tmp_path) as one:
            first = await one.load(VideoPart(frames=frames[:6]), VideoPart(frames=frames[2:]))
            parts = first.parts
            assert [item.digest for item in parts[0].items[1:]] == [item.digest for item in parts[1].items[:2]]
            assert used(one) == 4 * stored_cost(parts[0].items[0].num_bytes)
            first.release()
            assert used(one) == 0

    asyncio.run(run())


def test_a_name_leads_to_a_video_by_the_settings_it_was_sent_with(tmp_path: Path) -> None:
    few = FAMILY.with_settings({"num_frames": 2})

    async def run() -> None:
        async with loading(tmp_path) as one:
            sent = await one.load(VideoPart(data=CLIP, uuid="clip"))
            assert (await one.load(VideoPart(uuid="clip"))).parts == sent.parts
            assert (await one.failure(ImagePart(uuid="clip")))[0] == "UNKNOWN_MEDIA"
            reason, message = await one.failure(VideoPart(uuid="clip"), family=few)
            assert (reason, "the video of uuid 'clip' is not kept" in message) == ("UNKNOWN_MEDIA", True)
            (part,) = (await one.load(VideoPart(data=CLIP, uuid="clip"), family=few)).parts
            assert len(part.items) == 1
            assert (await one.load(VideoPart(uuid="clip"))).parts == sent.parts

    asyncio.run(run())


def test_a_video_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with loading(tmp_path, max_store_bytes=2 * LARGEST) as one:
            assert "is cut off" in (await one.fails(VideoPart(data=CLIP[:-9])))[1]
            large = FAMILY.with_settings({"num_frames": 40, "max_pixels": 40 * 640 * 480})
            assert "(media_store_bytes)" in (await one.fails(VideoPart(data=CLIP), family=large))[1]
            reason, message = await one.fails(VideoPart(data=CLIP), max_tokens=15)
            assert reason == "CONTEXT_LENGTH_EXCEEDED"
            assert message.startswith("part[0]: takes 24 tokens; there is room for 15; ask for fewer frames")
            (await one.load(VideoPart(data=CLIP))).release()
            assert "up to this one take 24 tokens" in (await one.fails(VideoPart(data=CLIP), max_tokens=15))[1]
            monkeypatch.setitem(decode_pool.SECONDS, "video", 0.02)
            monkeypatch.setattr(child_process, "IDLE_CHECKS", 1 << 30)  # so little time may pass without any of it
            slow = VideoPart(frames=(noise(1, 1900, 1900),) * 6)
            assert "took more than 0.02 s to decode; send a smaller video" in (await one.fails(slow))[1]

    asyncio.run(run())


def test_a_process_that_dies_amid_a_video_leaves_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            call = asyncio.create_task(one.fails(VideoPart(frames=LONG)))
            while not any(one.folder.glob("*.part.3")):
                await asyncio.sleep(0.005)
            one.child().kill()
            assert (await call)[0] == "RECOVERING"
            (await one.load(VideoPart(data=CLIP))).release()

    asyncio.run(run())


def test_a_process_keeps_within_its_memory_and_lets_others_go_first(tmp_path: Path) -> None:
    """By default: OpenCV and its codecs are large."""

    async def run() -> None:
        async with loading(tmp_path, max_image_pixels=64 << 20) as one:
            for width, height in ((1920, 1080), (3840, 2160)):
                (await one.load(VideoPart(data=video(pictures(5, width, height))))).release()
            assert one.child().nice() == min(19, psutil.Process().nice() + 5)

    asyncio.run(run())


async def begun(one: Loading, clip: VideoPart) -> "asyncio.Task[LoadedMedia]":
    """The load of a video whose first items are written."""
    call = asyncio.create_task(one.load(clip))
    while not any(one.folder.glob("*.part.3")):
        await asyncio.sleep(0.005)
    return call


def test_the_process_of_a_video_that_is_given_up_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            call = await begun(one, VideoPart(frames=LONG))
            child = one.child()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            (await one.load(noise(1))).release()
            assert not child.is_running()
            assert used(one) == 0
            assert not any(one.folder.glob("*.part.*"))
            (await one.load(VideoPart(data=CLIP))).release()  # at the same place

    asyncio.run(run())


def test_a_picture_does_not_wait_for_videos_where_there_are_processes(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path, num_processes=2, max_store_bytes=1 << 24) as one:
            first = await begun(one, VideoPart(frames=LONG))
            second = asyncio.create_task(one.load(VideoPart(frames=LONG[1:])))
            await asyncio.sleep(0)
            for child in children():
                child.send_signal(signal.SIGSTOP)
            (await one.load(noise(1))).release()
            assert [first.done(), second.done()] == [False, False]
            first.cancel()
            (await second).release()  # its turn comes
            assert used(one) == 0

    asyncio.run(run())


def test_a_video_that_gets_no_time_is_refused_for_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            monkeypatch.setitem(decode_pool.CLOCK_SECONDS, "video", 0.6)
            one.child().send_signal(signal.SIGSTOP)
            reason, message = await one.fails(VideoPart(data=CLIP))
            assert (reason, "was not decoded within 0.6 s; send the request again" in message) == ("QUEUE_FULL", True)
            monkeypatch.undo()
            (await one.load(VideoPart(data=CLIP))).release()

    asyncio.run(run())
