"""Random photographs, and the chats that ask about them."""

import io
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image

from quire.deploy.bench.report.errors import BenchError

LARGEST_SIDE = 16_384
PATCH = 32
"""Pixels of a side over which colours change slowly."""
GRAIN = 12
"""The most that a pixel's brightness differs from that, of 255: a JPEG has then the bytes of a photograph's."""
QUALITY = 85


@dataclass(frozen=True, slots=True)
class ImageChat:
    """A system prompt, empty for none, and one turn of images in front of a text."""

    system: str
    text: str
    images: tuple[bytes, ...]
    """JPEG files."""


def size_of(text: str) -> tuple[int, int]:
    """Width and height of `--image-size`. Raises `BenchError`."""
    found = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", text)
    width, height = map(int, found.groups()) if found else (0, 0)
    if not (1 <= width <= LARGEST_SIDE and 1 <= height <= LARGEST_SIDE):
        raise BenchError(f"--image-size: expected WIDTHxHEIGHT of 1 to {LARGEST_SIDE}, like 1280x720, got {text!r}")
    return width, height


def photograph(width: int, height: int, random: np.random.Generator) -> bytes:
    """A JPEG file of slow colours under grain; no two draws are alike but of very few pixels."""
    coarse = random.integers(0, 256, (height // PATCH + 2, width // PATCH + 2, 3), dtype=np.uint8)
    colours = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = random.integers(-GRAIN, GRAIN + 1, (height, width, 1), dtype=np.int16)
    pixels = np.clip(np.asarray(colours, dtype=np.int16) + grain, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
