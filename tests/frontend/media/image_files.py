"""Image files as clients send them, made here."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
BANDS = {"1": 1, "L": 1, "P": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "RGBA": 4, "CMYK": 4}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


def picture(mode: str, width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise over a slope: every resampling of it differs from every other."""
    random = np.random.default_rng(seed)
    slope = np.linspace(0, 200, width)[None, :, None] * np.linspace(0.2, 1, height)[:, None, None]
    values = (slope + random.integers(0, 56, (height, width, BANDS[mode]))).astype(np.uint8)
    if mode == "1":
        return Image.fromarray(values[..., 0]).point(lambda value: 255 * (value > 99)).convert("1")
    if mode == "P":
        made = Image.fromarray(values[..., 0]).convert("P")
        made.putpalette(random.integers(0, 256, 768).astype(np.uint8).tobytes())
        return made
    shape = values[..., 0] if BANDS[mode] == 1 else values
    return Image.frombytes(mode, (width, height), np.ascontiguousarray(shape).tobytes())


def saved(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """The bytes of its file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, color: int = 2, data: bytes = b"") -> bytes:
    """A PNG file that says what it is told to say; `data` are its lines, not packed yet."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return PNG + header + b"".join(chunks) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
