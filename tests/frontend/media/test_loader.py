"""Images of requests through real processes into the store, and what becomes of them when something goes wrong."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import picture, saved

from quire.frontend.media.decode import decode_pool
from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.loader import LoadedMedia, MediaLoader
from quire.frontend.media.store import stored_cost
from quire.proto.api import ImagePart, RequestError
from quire.proto.messages.media import media_file
from quire.proto.messages.params import ParameterError

FAMILY = QwenImages(placeholder_id=9, patch=16, merge=2, min_pixels=4 * 1024, max_pixels=64 * 1024)
LARGEST = stored_cost(FAMILY.max_bytes)
SQUARE = stored_cost(64 * 64 * 3)
"""Bytes of the store that an image of 64 x 64 pixels takes."""


class Source:
    """Bytes as they stand in the parts."""

    def __init__(self) -> None:
        self.num_reads = 0
        self.seconds = 0.0
        """Time that a read takes."""

    async def read(self, part: ImagePart, field: str, seconds: float) -> memoryview:
        self.num_reads += 1
        await asyncio.sleep(self.seconds)
        return memoryview(part.data)


class Loading:
    """A loader, and the requests of a test to it."""

    def __init__(self, parent: Path, name: str, **settings: int) -> None:
        self.source = Source()
        self.settings = {"num_processes": 1, "max_image_pixels": 1 << 22, "max_store_bytes": 4 * LARGEST} | settings
        self.loader = MediaLoader(FAMILY, self.source, parent / name, **self.settings)
        self.folder = parent / name

    async def load(
        self, *images: bytes | str | ImagePart, seconds: float = 60, max_tokens: int | None = None, **owner: str
    ) -> LoadedMedia:
        """`images`: bytes, or the uuid of one that was sent before."""
        parts = [
            image
            if isinstance(image, ImagePart)
            else ImagePart(**{"uuid" if isinstance(image, str) else "data": image})
            for image in images
        ]
        fields = [f"part[{number}]" for number in range(len(parts))]
        owner = {"tenant": "key", "cache_salt": ""} | owner
        return await self.loader.load(parts, fields=fields, seconds=seconds, max_tokens=max_tokens, **owner)

    async def failure(self, *images: bytes | str | ImagePart, **options: object) -> tuple[str, str]:
        """Reason and message."""
        with pytest.raises((ParameterError, RequestError)) as caught:
            await self.load(*images, **options)
        return caught.value.reason, str(caught.value)

    async def fails(self, *images: bytes | str | ImagePart, **options: object) -> tuple[str, str]:
        """The same; afterwards nothing is referred to, and no file is there that the store does not know."""
        used = self.loader.store.num_used_bytes
        failed = await self.failure(*images, **options)
        while self.loader._pool._work:  # what was being decoded beside the image that failed
            await asyncio.sleep(0.005)
        assert self.loader.store.num_used_bytes == used
        assert sum(stored_cost(file.stat().st_size) for file in self.folder.iterdir()) == self.loader.store.num_bytes
        return failed

    def child(self) -> psutil.Process:
        """The process that decodes."""
        (found,) = children()
        return found


def children() -> list[psutil.Process]:
    """The processes that decode for this one."""
    return [one for one in psutil.Process().children() if "decode_child" in " ".join(one.cmdline())]


@asynccontextmanager
async def loading(parent: Path, name: str = "0-life", **settings: int) -> AsyncIterator[Loading]:
    made = Loading(parent, name, **settings)
    await made.loader.start()
    try:
        yield made
    finally:
        await made.loader.close()
        assert not made.folder.exists()


def square(color: str | int = "red") -> bytes:
    return saved(Image.new("RGB", (64, 64), color))


def noise(seed: int, width: int = 64, height: int = 64) -> bytes:
    return saved(picture("RGB", width, height, seed))


def used(loading: Loading) -> int:
    return loading.loader.store.num_used_bytes


def test_items_come_in_order_with_their_pixels_in_files(tmp_path: Path) -> None:
    sizes = [(64, 64), (96, 160), (64, 96), (128, 64), (64, 64), (224, 32)]

    async def run() -> None:
        async with loading(tmp_path, num_processes=2) as one:
            images = [picture("RGB", *size, seed=seed) for seed, size in enumerate(sizes)]
            loaded = await one.load(*map(saved, images))
            for image, item in zip(images, loaded.items, strict=True):
                assert item.grid == (1, image.height // 16, image.width // 16)
                assert item.num_tokens == image.height * image.width // 1024
                assert item.folder == "0-life"
                stored = (tmp_path / media_file(item.folder, item.digest)).read_bytes()
                assert len(stored) == item.num_bytes
                assert stored == np.asarray(image).tobytes()
                assert (tmp_path / media_file(item.folder, item.digest)).stat().st_mode & 0o777 == 0o600
            assert used(one) == sum(item.cost for item in loaded.items)
            loaded.release()
            loaded.release()
            assert used(one) == 0
            assert {file.name for file in one.folder.iterdir()} == {item.digest.hex() for item in loaded.items}

    asyncio.run(run())


def test_an_image_sent_again_is_not_decoded_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            first = await one.load(noise(1), noise(1), noise(2))
            assert first.items[0] == first.items[1] != first.items[2]
            first.release()
            one.child().send_signal(signal.SIGSTOP)  # now nobody could decode
            second = await one.load(noise(2), noise(1))
            assert second.items == (first.items[2], first.items[0])
            second.release()
            assert used(one) == 0
            one.child().send_signal(signal.SIGCONT)

    asyncio.run(run())


def test_bad_images_cost_their_own_request_alone(tmp_path: Path) -> None:
    bad = {
        "does not decode": noise(1)[:3000],
        "is none that is read here": b"no image",
        "at most 4194304 are allowed": saved(Image.new("L", (2049, 2048))),
        "more than 200 times": saved(Image.new("L", (500, 2))),
    }

    async def run() -> None:
        async with loading(tmp_path, num_processes=2) as one:
            for said, data in bad.items():
                failed, good = await asyncio.gather(one.failure(noise(2), data, noise(3)), one.load(noise(4)))
                assert failed[0] == "INVALID_MEDIA"
                assert failed[1].startswith("part[1]: ")
                assert said in failed[1]
                good.release()
            assert used(one) == 0

    async def alone() -> None:
        async with loading(tmp_path) as one:
            assert "has no image: send its url" in (await one.fails(ImagePart()))[1]

    asyncio.run(run())
    asyncio.run(alone())


def test_clients_files_write_nothing_into_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """libtiff writes a line to standard error for each mistake that it finds."""
    damaged = bytearray(saved(picture("RGB", 64, 64), "TIFF", compression="tiff_adobe_deflate"))
    damaged[40:60] = bytes(20)

    async def run() -> None:
        async with loading(tmp_path) as one:
            assert "does not decode" in (await one.fails(bytes(damaged)))[1]

    asyncio.run(run())
    assert capfd.readouterr() == ("", "")


def test_ten_thousand_parts_cost_no_more_than_the_bad_one_among_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            assert (await one.fails(*[b"no image"] * 10_000))[0] == "INVALID_MEDIA"
            assert one.source.num_reads <= 4

    asyncio.run(run())


@pytest.mark.parametrize("when", ["idle", "at work"])
def test_a_killed_process_is_replaced(tmp_path: Path, when: str) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            (await one.load(noise(1))).release()
            child = one.child()
            if when == "at work":
                child.send_signal(signal.SIGSTOP)
                call = asyncio.create_task(one.fails(noise(2)))
                while one.source.num_reads < 2:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
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
            one.source.seconds = 60.0
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


def test_a_name_finds_an_image_of_its_own_key_and_salt_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            named = await one.load(ImagePart(data=noise(1), uuid="cat"))
            named.release()
            again = await one.load("cat", "cat")
            assert again.items == (named.items[0],) * 2
            again.release()
            for owner in ({"tenant": "other"}, {"cache_salt": "salt"}):
                reason, message = await one.fails("cat", **owner)
                assert reason == "UNKNOWN_MEDIA"
                assert (
                    message
                    == "part[0]: the image of uuid 'cat' is not kept here, or not any more; send its bytes again"
                )
            other = await one.load(ImagePart(data=noise(2), uuid="cat"), tenant="other")
            assert other.items[0].digest != named.items[0].digest
            other.release()
            (mine,) = (await one.load("cat")).items
            assert mine == named.items[0]

    asyncio.run(run())


def test_images_of_other_salts_share_nothing_by_which_one_could_tell_what_another_sent(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            held = [await one.load(noise(1), cache_salt=salt) for salt in ("", "a", "b", "a")]
            digests = [loaded.items[0].digest for loaded in held]
            assert len(set(digests)) == 3
            assert digests[1] == digests[3]
            pixels = {
                (tmp_path / media_file(loaded.items[0].folder, loaded.items[0].digest)).read_bytes() for loaded in held
            }
            assert len(pixels) == 1
            for loaded in held:
                loaded.release()

    asyncio.run(run())


def test_images_beyond_the_room_for_tokens_end_the_work_on_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            images = [noise(number) for number in range(50)]
            (fits := await one.load(*images[:3], max_tokens=3 * 4)).release()
            assert [item.num_tokens for item in fits.items] == [4, 4, 4]
            reason, message = await one.fails(*images, max_tokens=5 * 4)
            assert reason == "CONTEXT_LENGTH_EXCEEDED"
            assert "take 24 tokens; the context has room for 20; send fewer or smaller ones" in message
            assert one.source.num_reads < 3 + 15

    asyncio.run(run())


def test_a_name_follows_the_newest_bytes_and_never_stands_for_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path, max_store_bytes=LARGEST) as one:
            (await one.load(ImagePart(data=noise(1), uuid="cat"))).release()
            newer = await one.load(ImagePart(data=noise(2), uuid="cat"))
            newer.release()
            found = await one.load("cat")
            assert found.items == newer.items
            found.release()
            for seed in range(3, 4 + LARGEST // SQUARE):
                (await one.load(noise(seed))).release()
            assert (await one.fails("cat"))[0] == "UNKNOWN_MEDIA"
            assert "at most 256" in (await one.fails("c" * 257))[1]

    asyncio.run(run())


def test_two_frontends_share_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path, "0-a") as one:
            async with loading(tmp_path, "1-b") as other:
                here, there = await asyncio.gather(one.load(noise(1)), other.load(noise(1)))
                assert here.items[0].digest == there.items[0].digest
                assert (here.items[0].folder, there.items[0].folder) == ("0-a", "1-b")
                there.release()
            assert (tmp_path / media_file(here.items[0].folder, here.items[0].digest)).exists()
            here.release()

    asyncio.run(run())


def test_no_process_and_no_descriptor_is_left(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path, num_processes=3) as one:
            (await one.load(*(noise(seed) for seed in range(12)))).release()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert children() == []
    assert len(os.listdir("/proc/self/fd")) == before
