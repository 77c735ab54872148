"""Messages between a frontend and a process that decodes images and videos."""

import msgspec

from quire.frontend.media.families.table import MediaFamily
from quire.frontend.media.kind import MediaKind
from quire.proto.messages.media import Grid


class DecodeSetup(msgspec.Struct, frozen=True):
    """The settings of one process."""

    file: str
    """Beginning of the paths of the files to which it writes pixels, one for each item; see `item_file`."""
    max_pixels: int
    """Most pixels of an image, or of a frame, before it is resized."""
    max_bytes: int
    """Most bytes of all pixels of a video, resized."""


class DecodedItem(msgspec.Struct, frozen=True):
    """An item whose pixels are in its file, uint8 [frames, rows * patch, columns * patch, 3]."""

    digest: bytes
    """SHA-256, 32 bytes, over family, patch, `cache_salt`, grid and pixels."""
    grid: Grid
    num_bytes: int


class Decoded(msgspec.Struct, frozen=True, tag=True):
    """All items of an image or a video, in their order."""

    items: tuple[DecodedItem, ...]
    seconds: tuple[float, ...] = ()
    """The time of each item of a video."""
    columns: int = 0
    """See `StoredPart`."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The image or video cannot be taken: what is wrong with it, and the remedy."""

    message: str


class NotWritten(msgspec.Struct, frozen=True, tag=True):
    """The pixels could not be written, and the files are gone; `error` is the system's."""

    error: str


class TooLong(msgspec.Struct, frozen=True, tag=True):
    """The video takes so many tokens, more than there is room for: all but its first item was left undone."""

    num_tokens: int


Answer = Decoded | Refused | NotWritten | TooLong


class DecodeSettings(msgspec.Struct, frozen=True):
    """The rules by which one image or video is decoded, and whose it is."""

    family: MediaFamily
    cache_salt: str
    """Requests of other salts share nothing of it: how long one takes does not tell what another one sent."""
    kind: MediaKind = "image"


class DecodeJob(msgspec.Struct, frozen=True, array_like=True):
    """The head of a message to a process: how to read the bytes behind it."""

    settings: DecodeSettings
    frame_sizes: tuple[int, ...] = ()
    """Sizes of the pictures of which the bytes are made, the frames of a video; empty: they are one file."""
    max_tokens: int | None = None
    """Most tokens of a video; None: any number."""


def job_head(job: DecodeJob) -> bytes:
    """The beginning of a message, before the bytes of the file or the pictures; `split_job` takes it off."""
    packed = msgspec.msgpack.encode(job)
    return len(packed).to_bytes(4, "little") + packed


def split_job(payload: bytes) -> tuple[DecodeJob, bytes]:
    """The head of a message, and the bytes behind it."""
    end = 4 + int.from_bytes(payload[:4], "little")
    return msgspec.msgpack.decode(payload[4:end], type=DecodeJob), payload[end:]


def item_file(file: str, index: int) -> str:
    """Path of the file to which a process writes the pixels of item `index`. `file`: `DecodeSetup.file`."""
    return f"{file}.{index}"
