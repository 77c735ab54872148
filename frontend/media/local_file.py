"""Images in files of this machine, below the one folder that the operator opened.

A file is opened name by name from that folder down, and no name may be a link: what is opened lies below the folder,
whatever somebody renames meanwhile.
"""

import asyncio
import os
import re
import stat
from functools import partial
from urllib.parse import unquote_to_bytes

from quire.frontend.limits.work_pool import LARGE_BYTES, IsStopped, WorkPool
from quire.frontend.media.refused import MediaRefused

NUM_THREADS = 2
PIECE = 1 << 20
"""Bytes read between two looks at whether anybody still waits."""

_URL = re.compile(r"file:(?://([^/?#]*))?(/[^?#]*)", re.IGNORECASE)
"""Host and path."""
_SYSTEM = ("/proc/", "/sys/")
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class LocalFiles:
    """The files below `folder`; none where it is empty."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        """Raises `ValueError`."""
        self._max_bytes = max_bytes
        self._folder = os.fsencode(os.path.normpath(folder)) if folder else b""
        self._threads = WorkPool("media-file", NUM_THREADS)
        if not folder:
            return
        field = f"allowed_local_media_path: {folder!r}"
        if not os.path.isabs(folder) or not os.path.isdir(folder):
            raise ValueError(f"{field} is no folder; give the full path of one")
        real = os.path.realpath(folder)
        if real == "/" or f"{real}/".startswith(_SYSTEM):
            raise ValueError(f"{field} holds the system's own files; give the folder of the images")

    async def read(self, url: str, seconds: float) -> memoryview:
        """The bytes of a `file:` URL. Raises `MediaRefused`, `TimeoutError`."""
        names = self._names(url)
        try:
            async with asyncio.timeout(seconds):
                return await self._threads.run(LARGE_BYTES, partial(self._read, names))
        except TimeoutError:
            raise TimeoutError(f"could not be read within {seconds:.3g} s; send it again") from None

    def close(self) -> None:
        self._threads.close()

    def _names(self, url: str) -> list[bytes]:
        """The names that lead from the folder to the file."""
        if not self._folder:
            message = "no file of the server may be read (allowed_local_media_path); send the bytes as a data: URL"
            raise MediaRefused(message)
        parts = _URL.fullmatch(url)
        if parts is None or (parts[1] or "localhost").lower() != "localhost":
            raise MediaRefused("the URL is malformed; write file:///folder/image, with ? # and % percent-encoded")
        path = unquote_to_bytes(parts[2])
        names = _split(path)
        top = _split(self._folder)
        if names[: len(top)] != top or len(names) == len(top) or b".." in names or b"\0" in path:
            raise MediaRefused("is not below the folder that may be read (allowed_local_media_path)")
        return names[len(top) :]

    def _read(self, names: list[bytes], is_stopped: IsStopped) -> memoryview:
        try:
            with open(_open_below(self._folder, names), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise MediaRefused("is no regular file")
                size = status.st_size
                if not 0 < size <= self._max_bytes:
                    raise MediaRefused(f"has {size} bytes; 1 to {self._max_bytes} are allowed")
                data = memoryview(bytearray(size))
                at = 0
                while at < size and not is_stopped():
                    if not (count := file.readinto(data[at : at + PIECE])):
                        raise MediaRefused("became shorter while it was read; send it again")
                    at += count
                return data
        except OSError as error:
            raise MediaRefused(f"cannot be read: {error.strerror}; no link below the folder is followed") from error


def _split(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def _open_below(folder: bytes, names: list[bytes]) -> int:
    """Descriptor of the file. Nothing that is no regular file is opened, for opening a device may do something."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        for name in names[:-1]:
            at, above = os.open(name, _FOLDER, dir_fd=at), at
            os.close(above)
        if not stat.S_ISREG(os.stat(names[-1], dir_fd=at, follow_symlinks=False).st_mode):
            raise MediaRefused("is no regular file; no link below the folder is followed")
        return os.open(names[-1], _FILE, dir_fd=at)
    finally:
        os.close(at)
