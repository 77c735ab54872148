"""The child process that decodes images and videos: `python -m quire.frontend.media.decode.decode_child`, in a sandbox.

It hands no pixel back: it writes them to its files, which the frontend then moves to where workers find them.
"""

import contextlib
import ctypes
import hashlib
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator

import msgspec
from PIL import Image, UnidentifiedImageError

from quire.frontend.media.decode.decode_job import (
    Answer,
    Decoded,
    DecodedItem,
    DecodeSettings,
    DecodeSetup,
    NotWritten,
    Refused,
    TooLong,
    item_file,
    split_job,
)
from quire.frontend.media.decode.image import FORMATS, decode, set_limits
from quire.frontend.media.decode.video import VideoItems, open_video
from quire.frontend.media.families.table import MediaFamily, num_columns, video_rules
from quire.frontend.media.refused import MediaRefused
from quire.frontend.sandbox.child import serve
from quire.proto.messages.media import Grid

MAX_ERROR = 200
"""Characters of Pillow's message that an answer repeats."""
NICENESS = 5
"""Niceness of these processes: a client's picture waits for the answers to others, and not they for it."""
KEPT_BYTES = 256 << 20
"""Memory above which the process gives back what an image took; below, the next one finds its pages ready."""


def prepare(setup: bytes) -> Callable[[bytes], bytes]:
    """The function from a job to its `Answer`, as msgpack; `setup` is a `DecodeSetup`."""
    wanted = msgspec.msgpack.decode(setup, type=DecodeSetup)
    set_limits()
    _silence_libraries()
    os.nice(NICENESS)
    trim = ctypes.CDLL(None).malloc_trim

    def work(payload: bytes) -> bytes:
        result = answer(payload, wanted)
        del payload
        if _resident_bytes() > KEPT_BYTES:
            trim(0)
        return msgspec.msgpack.encode(result)

    return work


def answer(payload: bytes, setup: DecodeSetup) -> Answer:
    """Decode, resize and write one image or video, an item at a time; what is not taken leaves no file behind."""
    job, data = split_job(payload)  # what it raises is our own mistake, and no client's
    del payload
    settings = job.settings
    videos = video_rules(settings.family) if settings.kind == "video" else None
    items: list[DecodedItem] = []
    seconds: list[float] = []
    columns = 0
    try:
        if videos is not None:
            video = VideoItems(open_video(data, job.frame_sizes, setup.max_pixels), videos, setup.max_bytes)
            made, seconds = iter(video), video.seconds
        else:
            image = decode(data, setup.max_pixels)
            columns = num_columns(settings.family, image.height, image.width)
            made = image_items(image, settings.family)
        for grid, pixels in made:
            num_tokens = len(seconds) * settings.family.num_tokens(grid)
            if job.max_tokens is not None and num_tokens > job.max_tokens:
                return TooLong(num_tokens)
            items.append(DecodedItem(digest(settings, grid, pixels), grid, len(pixels)))
            _write(item_file(setup.file, len(items) - 1), pixels)
        return Decoded(tuple(items), tuple(seconds), columns)
    except _NotWritten as error:
        refusal: Answer = NotWritten(str(error))
    except MediaRefused as error:
        refusal = Refused(str(error))
    except UnidentifiedImageError:
        refusal = Refused(f"is none that is read here: {', '.join(FORMATS)}; send one of these")
    except MemoryError:
        refusal = Refused("takes too much memory to decode; reduce it")
    except Exception as error:  # whatever a file makes Pillow raise
        refusal = Refused(f"does not decode: {_first_line(error)}; send it whole and undamaged")
    for index in reversed(range(len(items))):  # who removes the others stops at the first that is not there
        with contextlib.suppress(OSError):
            os.unlink(item_file(setup.file, index))
    return refusal


def image_items(image: Image.Image, family: MediaFamily) -> Iterator[tuple[Grid, bytes]]:
    """Grid and pixels, uint8 [rows * patch, columns * patch, 3], of each item of an image. Raises `MediaRefused`."""
    resized = image
    sizes: tuple[tuple[int, int], ...] = ()
    for item in family.items(image.height, image.width):
        seen: list[bytes] = []
        for view in item.views:
            wanted = (*view.before, view.size)
            if wanted[: len(sizes)] != sizes:
                resized, sizes = image, ()
            for height, width in wanted[len(sizes) :]:
                resized = resized.resize((width, height), Image.Resampling(family.resample))
            sizes = wanted
            seen.append((resized if view.is_whole else resized.crop(view.box)).tobytes())
        yield item.grid, b"".join(seen) if len(seen) > 1 else seen[0]


def digest(settings: DecodeSettings, grid: Grid, pixels: bytes) -> bytes:
    """SHA-256 over all that the rows of an item depend on, and whose they are."""
    family = settings.family
    head = ("image", family.kind, family.patch, family.merge, settings.cache_salt, grid)
    found = hashlib.sha256(msgspec.msgpack.encode(head))
    found.update(pixels)
    return found.digest()


class _NotWritten(Exception):
    """The system's reason why pixels could not be written."""


def _silence_libraries() -> None:
    """Keep from the log what libraries find in clients' files; Python still writes there what is our own mistake."""
    warnings.simplefilter("ignore")
    sys.stderr = os.fdopen(os.dup(2), "w")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _write(path: str, pixels: bytes) -> None:
    """Raises `_NotWritten`."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(pixels)
    except OSError as error:
        raise _NotWritten(os.strerror(error.errno or 0)) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:MAX_ERROR] if lines else type(error).__name__


if __name__ == "__main__":
    serve(prepare)
