"""How much work one request may make, counted: items of a prompt, files that are looked at, turns of the event loop."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from image_files import saved
from loading import FAMILY, VIDEOS, loading, noise, used

from quire.frontend.media.store import MediaStore
from quire.proto.api import ImagePart, VideoPart
from quire.proto.messages.media import MAX_ITEMS

STILL = VideoPart(frames=(saved(Image.new("RGB", (64, 64), "red")),) * 768, uuid="still")
"""A video of 384 items that are all the same."""
NUM_ITEMS = 384


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Digests of the items whose files the store looked at."""
    found: list[bytes] = []
    look = MediaStore._is_whole
    monkeypatch.setattr(MediaStore, "_is_whole", lambda self, item: found.append(item.digest) or look(self, item))
    return found


def test_a_prompt_of_too_many_items_is_refused_at_the_part_that_exceeds(tmp_path: Path, looks: list[bytes]) -> None:
    """A name of a few bytes stands for hundreds of items."""

    async def run() -> None:
        async with loading(tmp_path, max_store_bytes=1 << 24) as one:
            (await one.load(STILL)).release()
            fits = MAX_ITEMS // NUM_ITEMS
            (await one.load(*[VideoPart(uuid="still")] * fits)).release()
            looks.clear()
            reason, message = await one.fails(*[VideoPart(uuid="still")] * 999)
            assert reason == "INVALID_PARAMETER"
            assert message == (
                f"part[{fits}]: the images and videos up to this one have {(fits + 1) * NUM_ITEMS} items, one for "
                f"each run of frames that is read as one; a prompt may have {MAX_ITEMS}; send fewer or shorter ones"
            )
            assert len(looks) <= fits + 4  # those that were under way
            assert used(one) == 0

    asyncio.run(run())


def test_a_video_may_have_as_many_items_as_a_prompt(tmp_path: Path) -> None:
    many = msgspec.structs.replace(FAMILY, videos=msgspec.structs.replace(VIDEOS, max_frames=2 * MAX_ITEMS))

    async def run() -> None:
        async with loading(tmp_path, max_store_bytes=1 << 26) as one:
            loaded = await one.load(VideoPart(frames=STILL.frames[:1] * (2 * MAX_ITEMS)), family=many)
            assert len(loaded.items) == MAX_ITEMS
            loaded.release()

    asyncio.run(run())


def test_the_file_of_an_item_is_looked_at_once_a_part(tmp_path: Path, looks: list[bytes]) -> None:
    async def run() -> None:
        async with loading(tmp_path, max_store_bytes=1 << 24) as one:
            (await one.load(STILL)).release()
            looks.clear()
            (await one.load(VideoPart(uuid="still"))).release()
            assert len(looks) == 1

    asyncio.run(run())


def test_others_get_their_turn_between_the_parts_of_a_request(tmp_path: Path) -> None:
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        nonlocal turns
        async with loading(tmp_path, max_store_bytes=1 << 24) as one:
            (await one.load(ImagePart(data=noise(1), uuid="cat"))).release()
            beside = asyncio.create_task(neighbour())
            await asyncio.sleep(0)
            turns = 0
            (await one.load(*["cat"] * 60)).release()
            assert turns >= 60 // one.loader._at_once
            beside.cancel()

    asyncio.run(run())
