"""Sources of the bytes of images and videos: the request itself, a file of the server, the web."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from quire.frontend.limits.byte_budget import current_body
from quire.frontend.limits.work_pool import IsStopped, WorkPool
from quire.frontend.media import data_url
from quire.frontend.media.fetch import WebFetcher
from quire.frontend.media.local_file import LocalFiles
from quire.frontend.media.refused import MediaRefused
from quire.proto.api import ImagePart, RequestError, VideoPart
from quire.proto.messages.params import ParameterError

T = TypeVar("T")
VideoBytes = bytes | memoryview | tuple[bytes | memoryview, ...]
"""A file of a video, or files of pictures that are its frames."""

NUM_THREADS = 2
"""Number of threads that decode base64."""
FETCH_SECONDS = 5.0
VIDEO_FETCH_SECONDS = 30.0
NUM_FETCHES = 8
MAX_URL_CHARS = 8192
"""Length of a URL that names something elsewhere."""
SHOWN_CHARS = 80
"""Characters of a URL that an error repeats."""

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,15}):")
_SECRET = re.compile(r"[?#].*|(?<=//)[^/?#]*@", re.DOTALL)
"""Parts of a URL that may be a key."""
_TYPE = re.compile(r"data:[a-z]{1,16}/[a-z0-9.+-]{1,40}(?=[;,])", re.IGNORECASE)


class Sources:
    """One per frontend. Files and the web are closed unless the operator opens them."""

    def __init__(
        self,
        max_bytes: int,
        *,
        allowed_local_media_path: str = "",
        allowed_media_domains: Sequence[str] = (),
        fetch_seconds: float = FETCH_SECONDS,
        video_fetch_seconds: float = VIDEO_FETCH_SECONDS,
        num_fetches: int = NUM_FETCHES,
    ) -> None:
        """`max_bytes`: of one image or video as it comes. `allowed_media_domains`: entries as `AllowedHost` has them.

        Raises `ValueError` naming the field.
        """
        self._max_bytes = max_bytes
        self._threads = WorkPool("media-base64", NUM_THREADS)
        self._files = LocalFiles(allowed_local_media_path, max_bytes)
        self._video_seconds = video_fetch_seconds
        self._web = WebFetcher(allowed_media_domains, max_bytes, fetch_seconds, num_fetches)

    async def read(self, part: ImagePart, field: str, seconds: float) -> bytes | memoryview:
        """The bytes of an image's file, 1 to `max_bytes`, within `seconds`. What they are is not looked at.

        Raises `ParameterError` on `field` for what the client must change, `RequestError` for what took too long, found
        no room or failed by itself.
        """
        with _refused(part, field):
            if not (part.url or part.data):
                raise MediaRefused("is empty; give the URL or the bytes of an image")
            return self._allowed(part.data) if part.data else await self._read(part.url, data_url.decode, seconds)

    async def read_video(self, part: VideoPart, field: str, seconds: float) -> VideoBytes:
        """The bytes of a video's file, or those of the file of each of its frames; `max_bytes` for all of them.

        Raises as `read`.
        """
        with _refused(part, field):
            if part.data:
                return self._allowed(part.data)
            if part.frames:
                return self._frames(part.frames)
            if not part.url:
                raise MediaRefused("is empty; give the URL, the bytes or the frames of a video")
            return await self._read(part.url, data_url.decode_video, seconds, self._video_seconds)

    async def close(self) -> None:
        """End the child processes and the threads."""
        self._threads.close()
        self._files.close()
        await self._web.close()

    async def _read(
        self, url: str, decode: Callable[[str, int, IsStopped], T], seconds: float, fetch_seconds: float | None = None
    ) -> T | memoryview:
        """The bytes that a URL names; `decode`: of `data:`. `fetch_seconds`: of a fetch, if not the usual time."""
        match _scheme(url):
            case "data":
                return await self._threads.run(len(url), partial(decode, url, self._max_bytes))
            case "file":
                return _counted(await self._files.read(_checked(url), seconds))
            case "http" | "https":
                return _counted(await self._web.fetch(_checked(url), seconds, fetch_seconds))
        raise MediaRefused("is no URL that is read here; give https://..., file:///... or data:...;base64,...")

    def _allowed(self, data: bytes) -> bytes:
        if len(data) > self._max_bytes:
            raise MediaRefused(f"has {len(data)} bytes; at most {self._max_bytes} are allowed")
        return data

    def _frames(self, frames: tuple[bytes, ...]) -> tuple[bytes, ...]:
        if len(frames) > data_url.MAX_FRAMES:
            raise MediaRefused(f"has {len(frames)} frames; at most {data_url.MAX_FRAMES} are allowed, send fewer")
        if b"" in frames:
            raise MediaRefused(f"frame {frames.index(b'')} is empty; send the bytes of a picture")
        size = sum(map(len, frames))
        if size > self._max_bytes:
            raise MediaRefused(f"has frames of {size} bytes; at most {self._max_bytes} are allowed")
        return frames


@contextmanager
def _refused(part: ImagePart | VideoPart, field: str) -> Iterator[None]:
    """The errors of a part's field, for what is wrong with it."""
    try:
        yield
    except MediaRefused as error:
        raise ParameterError(field, f"{_shown(part.url)}{error}", "INVALID_MEDIA") from error
    except TimeoutError as error:
        raise RequestError("DEADLINE", f"{field}: {_shown(part.url)}{error}", field=field) from error


def _scheme(url: str) -> str:
    found = _SCHEME.match(url)
    return found[1].lower() if found is not None else ""


def _checked(url: str) -> str:
    """A URL that names something elsewhere. Raises `MediaRefused`."""
    if len(url) > MAX_URL_CHARS:
        raise MediaRefused(f"the URL has {len(url)} characters; at most {MAX_URL_CHARS} are allowed")
    try:
        url.encode()
    except UnicodeEncodeError as error:
        raise MediaRefused("the URL has half a character (a lone surrogate)") from error
    return url


def _counted(data: memoryview) -> memoryview:
    """Bytes that came beside the request's body, counted with it. Raises `RequestError` (QUEUE_FULL)."""
    body = current_body()
    if body is not None:
        body.grow(len(data))
    return data


def _shown(url: str) -> str:
    """The beginning of an error about a part: its URL, with neither pixels nor what may be a key."""
    scheme = _scheme(url)
    if scheme in ("file", "http", "https"):
        return f"{_SECRET.sub('', url[:MAX_URL_CHARS])[:SHOWN_CHARS]!r}: "
    media_type = _TYPE.match(url)
    return f"{media_type[0]}: " if media_type is not None else f"{scheme}: " if scheme else ""
