"""Clients' names and salts: what leads to an image that was sent before, and what does not."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loading import LARGEST, SQUARE, loading, noise

from quire.proto.api import ImagePart
from quire.proto.messages.media import media_file


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
