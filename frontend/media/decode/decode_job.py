"""Messages between a frontend and a process that decodes images."""

import msgspec

from quire.frontend.media.families.table import MediaFamily


class DecodeSetup(msgspec.Struct, frozen=True):
    """The settings of one process."""

    file: str
    """Beginning of the paths of the files to which it writes pixels, one for each item; see `item_file`."""
    max_pixels: int
    """Most pixels of an image before it is resized."""


class DecodedItem(msgspec.Struct, frozen=True):
    """An item whose pixels are in its file, uint8 [frames, rows * patch, columns * patch, 3]."""

    digest: bytes
    """SHA-256, 32 bytes, over family, patch, `cache_salt`, grid and pixels."""
    grid: tuple[int, int, int]
    num_bytes: int


class Decoded(msgspec.Struct, frozen=True, tag=True):
    """All items of an image, in their order."""

    items: tuple[DecodedItem, ...]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The image cannot be taken: what is wrong with it, and the remedy."""

    message: str


class NotWritten(msgspec.Struct, frozen=True, tag=True):
    """The pixels could not be written, and the files are gone; `error` is the system's."""

    error: str


Answer = Decoded | Refused | NotWritten


class DecodeSettings(msgspec.Struct, frozen=True):
    """The rules by which one image is decoded, and whose it is."""

    family: MediaFamily
    cache_salt: str
    """Requests of other salts share nothing of it: how long one takes does not tell what another one sent."""


def job_head(settings: DecodeSettings) -> bytes:
    """The beginning of a job, before the bytes of the image; `split_job` takes it off."""
    packed = msgspec.msgpack.encode(settings)
    return len(packed).to_bytes(4, "little") + packed


def split_job(payload: bytes) -> tuple[DecodeSettings, bytes]:
    """The settings and the bytes of an image."""
    end = 4 + int.from_bytes(payload[:4], "little")
    return msgspec.msgpack.decode(payload[4:end], type=DecodeSettings), payload[end:]


def item_file(file: str, index: int) -> str:
    """Path of the file to which a process writes the pixels of item `index`. `file`: `DecodeSetup.file`."""
    return f"{file}.{index}"
