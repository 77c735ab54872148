"""Images of requests whose process, disk, store or time does not hold."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import picture, saved
from loading import LARGEST, SQUARE, Loading, loading, noise, square, used
from parts.clock import GUARD

from quire.frontend.media.decode import decode_pool
from quire.frontend.media.loader import LoadedMedia
from quire.frontend.sandbox import child_process
from quire.proto.api import ImagePart, RequestError
from quire.proto.messages.media import media_file


@pytest.mark.parametrize("when", ["idle", "at work"])
def test_a_killed_process_is_replaced(tmp_path: Path, when: str) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            (await one.load(noise(1))).release()
            child = one.child()
            if when == "at work":
                child.send_signal(signal.SIGSTOP)
                call = asyncio.create_task(one.fails(noise(2)))
                while not one.loader._pool._work:
                    await asyncio.sleep(0.005)
                for _ in range(20):
                    await asyncio.sleep(0)  # until it has been asked, or another one would be
                child.kill()
                reason, message = await call
                assert reason == "RECOVERING"
                assert "send it again" in message
            else:
                child.kill()
                while child.status() != psutil.STATUS_ZOMBIE:
                    await asyncio.sleep(0.005)
            (await one.load(noise(2))).release()

    asyncio.run(run())


def test_an_image_that_takes_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_pool, "PIXEL_BYTES", 0)
    monkeypatch.setattr(decode_pool, "PROCESS_BYTES", 130 << 20)

    async def run() -> None:
        async with loading(tmp_path, max_image_pixels=1 << 26) as one:
            reason, message = await one.fails(saved(Image.new("RGB", (8000, 8000))))
            assert (reason, message) == ("INVALID_MEDIA", "part[0]: takes too much memory to decode; reduce it")
            (await one.load(square())).release()

    asyncio.run(run())


def test_an_image_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decode_pool.SECONDS, "image", 0.02)
    monkeypatch.setattr(child_process, "IDLE_CHECKS", 1 << 30)  # a busy machine may leave it idle for so little time

    async def run() -> None:
        async with loading(tmp_path) as one:
            reason, message = await one.fails(noise(1, 1900, 1900))
            assert (reason, message) == (
                "INVALID_MEDIA",
                "part[0]: took more than 0.02 s to decode; send a smaller image",
            )

    asyncio.run(run())


def test_a_request_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            (await one.load(square())).release()
            for pause in (0, 0.002, 0.01, 0.03, 0.1):
                call = asyncio.create_task(one.load(square(), *(noise(seed, 500, 500) for seed in range(4))))
                await asyncio.sleep(pause)
                call.cancel()
                (outcome,) = await asyncio.gather(call, return_exceptions=True)
                if isinstance(outcome, LoadedMedia):  # on a fast machine
                    outcome.release()
                else:
                    assert isinstance(outcome, asyncio.CancelledError)
            (await one.load(noise(99))).release()  # at the same place
            assert used(one) == 0
            assert [file for file in one.folder.iterdir() if file.suffix] == []

    asyncio.run(run())


def test_the_deadline_holds_for_all_images_together(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            one.source.seconds = GUARD
            assert (await one.fails(noise(1), noise(2), seconds=0.05))[0] == "DEADLINE"
            one.source.seconds = 0.0
            (await one.load(noise(1))).release()

    asyncio.run(run())


def test_a_full_store_refuses_and_waits_for_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path, max_store_bytes=LARGEST) as one:
            held = [await one.load(square(number)) for number in range(LARGEST // SQUARE)]
            reason, message = await one.fails(noise(1))
            assert reason == "QUEUE_FULL"
            assert f"take {used(one)} of {LARGEST} bytes; send the request again" in message
            (await one.load(square(3))).release()  # it is here
            held[0].release()
            (await one.load(noise(1))).release()
            reason, message = await one.fails(*(noise(seed) for seed in range(2 + LARGEST // SQUARE)))
            assert reason == "QUEUE_FULL"
            for request in held[1:]:
                request.release()
            reason, message = await one.fails(*(noise(seed) for seed in range(2 + LARGEST // SQUARE)))
            assert reason == "EXCEEDS_CAPACITY"
            assert f"at most {LARGEST} are kept; send fewer" in message

    asyncio.run(run())


def test_a_store_must_hold_the_largest_image(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=f"media_store_bytes: {LARGEST - 1} is less than .* takes, {LARGEST}; raise it"
    ):
        Loading(tmp_path, "0", max_store_bytes=LARGEST - 1)


def test_a_full_disk_takes_what_nobody_uses_and_then_refuses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            (await one.load(noise(1))).release()
            part = one.folder / "0.part.0"
            part.symlink_to("/dev/full")  # it goes with the first attempt: then there is space
            held = await one.load(noise(2))
            assert {file.name for file in one.folder.iterdir()} == {held.items[0].digest.hex()}
            part.symlink_to("/dev/full")
            reason, message = await one.fails(noise(3))
            assert reason == "QUEUE_FULL"
            assert "No space left on device; send the request again" in message
            part.symlink_to("/dev/full")
            with pytest.raises(RequestError) as caught:
                await one.load(noise(4))
            assert caught.value.field == "part[0]"
            held.release()
            (await one.load(noise(3))).release()

    asyncio.run(run())
    assert [record.message.split(": ")[-1] for record in caplog.records] == [
        "No space left on device; free space there, or lower --media-store-bytes",
        "images are written again",
    ]


@pytest.mark.parametrize("harm", ["removed", "cut"])
def test_an_image_whose_file_somebody_harmed_is_decoded_again(tmp_path: Path, harm: str) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            image = picture("RGB", 64, 64, seed=1)
            held = await one.load(ImagePart(data=saved(image), uuid="cat"))
            (await one.load(noise(2))).release()
            for file in one.folder.iterdir():
                file.unlink() if harm == "removed" else os.truncate(file, 100)
            assert (await one.failure("cat"))[0] == "UNKNOWN_MEDIA"
            for again in (await one.load(saved(image)), await one.load(noise(2))):
                (item,) = again.items
                assert (tmp_path / media_file(item.folder, item.digest)).stat().st_size == item.num_bytes
                again.release()
            assert (tmp_path / media_file(held.items[0].folder, held.items[0].digest)).read_bytes() == np.asarray(
                image
            ).tobytes()
            assert used(one) == held.items[0].cost
            held.release()
            assert (used(one), one.loader.store.num_bytes) == (0, 2 * SQUARE)

    asyncio.run(run())


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path / "media") as one:
            (await one.load(noise(1))).release()
            shutil.rmtree(tmp_path / "media")
            held = await one.load(noise(1), noise(2))
            assert {file.name for file in one.folder.iterdir()} == {item.digest.hex() for item in held.items}
            assert one.folder.stat().st_mode & 0o777 == one.folder.parent.stat().st_mode & 0o777 == 0o700
            held.release()

    (tmp_path / "media").mkdir()
    asyncio.run(run())
