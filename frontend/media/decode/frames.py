"""Frames of videos that need no codec of videos: a list of pictures, or an animation."""

from collections.abc import Sequence
from io import BytesIO
from typing import Protocol

from PIL import Image, ImageSequence, UnidentifiedImageError

from quire.frontend.media.decode.image import FORMATS, check_pixels, decode, rgb
from quire.frontend.media.refused import MediaRefused

ANIMATIONS = tuple(name for name in ("GIF", "WEBP", "PNG", "AVIF") if name in FORMATS)
MAX_FRAMES = 1 << 14
"""Most frames of an animation: all are decoded to learn its times, and those of a GIF to learn their number."""


class Frames(Protocol):
    """A video whose frames are read once, forward."""

    num_frames: int
    fps: float | None
    """Frames a second; None: it does not say."""
    height: int
    width: int

    def frame(self, index: int) -> Image.Image:
        """Frame `index` in RGB; no later call has a smaller one. Raises `MediaRefused`, or what a library raises."""
        ...


class ListedFrames:
    """Pictures that a client took from a video."""

    fps: float | None = None

    def __init__(self, pictures: Sequence[bytes], max_pixels: int) -> None:
        self._pictures = pictures
        self._max_pixels = max_pixels
        self._index, self._image = 0, self._decoded(0)
        self.num_frames = len(pictures)
        self.width, self.height = self._image.size

    def frame(self, index: int) -> Image.Image:
        if index != self._index:
            self._index, self._image = index, self._decoded(index)
        if self._image.size != (self.width, self.height):
            shape, first = "{} x {}".format(*self._image.size), f"{self.width} x {self.height}"
            raise MediaRefused(f"frame {index} has {shape} pixels, the first one {first}; send frames of one size")
        return self._image

    def _decoded(self, index: int) -> Image.Image:
        """Raises `MediaRefused` with the number of the frame, or `MemoryError`."""
        try:
            return decode(self._pictures[index], self._max_pixels)
        except MediaRefused as error:
            raise MediaRefused(f"frame {index} {error}") from error
        except UnidentifiedImageError as error:
            kinds = ", ".join(FORMATS)
            raise MediaRefused(f"frame {index} is no picture that is read here: {kinds}; send one of these") from error
        except MemoryError:
            raise
        except Exception as error:  # whatever a file makes Pillow raise
            raise MediaRefused(f"frame {index} does not decode; send it whole and undamaged") from error


class AnimatedFrames:
    """The frames of a GIF, or of an animation in WebP, PNG or AVIF."""

    def __init__(self, data: bytes, max_pixels: int) -> None:
        with Image.open(BytesIO(data), formats=ANIMATIONS) as image:
            check_pixels(image, max_pixels)
            self.width, self.height = image.size
            if image.format != "GIF":
                _check_frames(getattr(image, "n_frames", 1))
            shown: list[float] = []
            for one in ImageSequence.Iterator(image):
                _check_frames(len(shown) + 1)
                shown.append(_milliseconds(one))
        self.num_frames = len(shown)
        self.fps = 1000 * len(shown) / sum(shown) if sum(shown) > 0 else None
        self._image = Image.open(BytesIO(data), formats=ANIMATIONS)

    def frame(self, index: int) -> Image.Image:
        self._image.seek(index)
        return rgb(self._image.copy())


def _check_frames(number: int) -> None:
    """Raises `MediaRefused` where an animation has so many frames, or more, and that is too many."""
    if number > MAX_FRAMES:
        message = f"is an animation of more than {MAX_FRAMES} frames"
        raise MediaRefused(f"{message}; send a shorter one, or a video's file")


def _milliseconds(shown: Image.Image) -> float:
    """The time that the frame of an animation is shown; 0: it does not say."""
    shown.load()  # WebP says it only then
    return float(shown.info.get("duration", 0))
