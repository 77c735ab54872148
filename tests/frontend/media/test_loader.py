"""Images of requests through real processes into the store."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import picture, saved
from loading import children, loading, noise, used

from quire.proto.api import ImagePart
from quire.proto.messages.media import media_file


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


def test_images_beyond_the_room_for_tokens_end_the_work_on_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with loading(tmp_path) as one:
            images = [noise(number) for number in range(50)]
            (fits := await one.load(*images[:3], max_tokens=3 * 4)).release()
            assert [item.num_tokens for item in fits.items] == [4, 4, 4]
            reason, message = await one.fails(*images, max_tokens=5 * 4)
            assert reason == "CONTEXT_LENGTH_EXCEEDED"
            assert "take 24 tokens; there is room for 20; send fewer or smaller ones" in message
            assert one.source.num_reads < 3 + 15

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
