"""An image file as pixels: opened by the name of its format, upright, over white, in RGB.

Pillow reads whatever a client sent: only a process that can be killed imports this.
"""

import struct
from io import BytesIO

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from quire.frontend.media.refused import MediaRefused

_PLUGINS = {
    "JPEG": JpegImagePlugin,
    "PNG": PngImagePlugin,
    "WEBP": WebPImagePlugin,
    "GIF": GifImagePlugin,
    "BMP": BmpImagePlugin,
    "TIFF": TiffImagePlugin,
    "AVIF": AvifImagePlugin,
}
FORMATS = tuple(name for name, plugin in _PLUGINS.items() if getattr(plugin, "SUPPORTED", True))
"""Names of the formats that are tried. Pillow knows dozens, and some of them start other programs."""
MAX_TEXT_BYTES = 4 << 20
"""Most bytes of all texts in a PNG file, unpacked."""
KEPT_BLOCKS = 8
"""Number of Pillow's blocks, of at most 16 MiB, that are kept for the next image.

To get fresh pages from the system for all copies of an image takes as long as to resize it.
"""

_HIGH_BYTE = {"I;16": 1, "I;16L": 1, "I;16B": 0}
"""Mode of 16-bit grey -> place of the byte that an 8-bit image would have."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Orientation by EXIF -> what undoes it."""


def set_limits() -> None:
    """Set this process's limits of Pillow. Pixels are counted by `decode`, which names them in its refusal."""
    Image.core.set_blocks_max(KEPT_BLOCKS)  # type: ignore[attr-defined]  # documented, yet not exported
    Image.MAX_IMAGE_PIXELS = None
    PngImagePlugin.MAX_TEXT_MEMORY = MAX_TEXT_BYTES
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """The image in a file of at most `max_pixels`, in RGB; of an animation the first frame.

    Raises `MediaRefused`, and of a damaged file whatever Pillow raises.
    """
    image = Image.open(BytesIO(data), formats=FORMATS)
    check_pixels(image, max_pixels)
    image.load()
    undo = _UPRIGHT.get(_orientation(image))
    return rgb(image if undo is None else image.transpose(undo))


def check_pixels(image: Image.Image, max_pixels: int) -> None:
    """Raises `MediaRefused` for an image, not loaded yet, without pixels or with too many."""
    width, height = image.size
    if not (width and height):
        raise MediaRefused(f"has {width} x {height} pixels; send an image that has some")
    if width * height > max_pixels:
        raise MediaRefused(f"has {width} x {height} pixels; at most {max_pixels} are allowed; send a smaller image")


def _orientation(image: Image.Image) -> int:
    """Orientation by EXIF; 1, which is upright, where EXIF says none or is damaged, as viewers take it."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except (SyntaxError, ValueError, TypeError, KeyError, IndexError, OSError, struct.error):
        return 1


def rgb(image: Image.Image) -> Image.Image:
    """An image in RGB, what is transparent over white. Raises `MediaRefused`."""
    if image.mode in _HIGH_BYTE:
        image = _eight_bits(image)
    if image.mode in ("I", "F"):
        raise MediaRefused("has 32-bit values, of which nobody knows black and white; send 8 or 16 bits a channel")
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image if image.mode == "RGBA" else image.convert("RGBA")
    over_white = Image.new("RGB", clear.size, "white")
    over_white.paste(clear, mask=clear.getchannel("A"))
    return over_white


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey in 8 bits, as decoders make them of 16-bit colour: the higher byte of each value."""
    if "transparency" in image.info:
        raise MediaRefused("has 16-bit grey with a transparent value; send an alpha channel, or 8 bits")
    return Image.frombytes("L", image.size, image.tobytes()[_HIGH_BYTE[image.mode] :: 2])
