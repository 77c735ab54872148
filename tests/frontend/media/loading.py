"""A loader of images and videos with real processes, and the requests of a test to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from image_files import picture, saved
from parts.clock import GUARD
from PIL import Image

from quire.frontend.media.families.qwen import QwenImages
from quire.frontend.media.families.videos.qwen import Qwen3Videos
from quire.frontend.media.loader import LoadedMedia, MediaLoader
from quire.frontend.media.store import stored_cost
from quire.frontend.metrics.metrics import Metrics
from quire.proto.api import ImagePart, RequestError, VideoPart
from quire.proto.messages.params import ParameterError

BOUNDS = {"min_pixels": 4 * 1024, "max_pixels": 64 * 1024}
VIDEOS = Qwen3Videos(placeholder_id=8, patch=16, merge=2, **BOUNDS)
FAMILY = QwenImages(placeholder_id=9, patch=16, merge=2, videos=VIDEOS, **BOUNDS)
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

    async def read_video(self, part: VideoPart, field: str, seconds: float) -> memoryview | tuple[bytes, ...]:
        self.num_reads += 1
        return part.frames or memoryview(part.data)


class Loading:
    """A loader, and the requests of a test to it."""

    def __init__(self, parent: Path, name: str, **settings: int) -> None:
        self.source = Source()
        self.settings = {"num_processes": 1, "max_image_pixels": 1 << 22, "max_store_bytes": 4 * LARGEST} | settings
        self.loader = MediaLoader(FAMILY, self.source, parent / name, Metrics(), **self.settings)
        self.folder = parent / name

    async def load(
        self,
        *images: bytes | str | ImagePart | VideoPart,
        seconds: float = GUARD,
        max_tokens: int | None = None,
        family: QwenImages = FAMILY,
        **owner: str,
    ) -> LoadedMedia:
        """`images`: bytes, or the uuid of one that was sent before."""
        parts = [
            image
            if isinstance(image, ImagePart | VideoPart)
            else ImagePart(**{"uuid" if isinstance(image, str) else "data": image})
            for image in images
        ]
        fields = [f"part[{number}]" for number in range(len(parts))]
        owner = {"tenant": "key", "cache_salt": ""} | owner
        families = {"image": family, "video": family}
        return await self.loader.load(
            parts, fields=fields, seconds=seconds, max_tokens=max_tokens, families=families, **owner
        )

    async def failure(self, *images: bytes | str | ImagePart | VideoPart, **options: object) -> tuple[str, str]:
        """Reason and message."""
        with pytest.raises((ParameterError, RequestError)) as caught:
            await self.load(*images, **options)
        return caught.value.reason, str(caught.value)

    async def fails(self, *images: bytes | str | ImagePart | VideoPart, **options: object) -> tuple[str, str]:
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
