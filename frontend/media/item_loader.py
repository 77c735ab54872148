"""One image or video on its way into the store: its bytes from where they are, its pixels from the pool."""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from quire.frontend.media.decode.decode_job import DecodeJob, DecodeSettings, job_head
from quire.frontend.media.decode.decode_pool import DecodePool
from quire.frontend.media.families.table import MediaFamily
from quire.frontend.media.kind import MediaKind, MediaPart, kind_of
from quire.frontend.media.source import VideoBytes
from quire.frontend.media.store import MediaStore, StoredPart
from quire.frontend.media.uuid_table import MAX_UUID_CHARS, UuidTable
from quire.proto.api import ImagePart, VideoPart
from quire.proto.messages.params import ParameterError

LARGE_BYTES = 64 << 10
"""Size from which bytes are hashed in a thread, beside the event loop."""


class BytesSource(Protocol):
    """The place that the bytes of images and videos come from."""

    async def read(self, part: ImagePart, field: str, seconds: float) -> bytes | memoryview:
        """The bytes of an image's file. Raises `ParameterError` on `field`, and `RequestError`."""

    async def read_video(self, part: VideoPart, field: str, seconds: float) -> VideoBytes:
        """The bytes of a video's file, or those of the files of its frames. Raises the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """A request as its media know it."""

    tenant: str
    """The API key's name."""
    cache_salt: str
    families: Mapping[MediaKind, MediaFamily]
    """The model's, with the settings of the request for each kind of its parts."""


class ItemLoader:
    """One per frontend."""

    def __init__(self, source: BytesSource, store: MediaStore, pool: DecodePool) -> None:
        self._source = source
        self._store = store
        self._pool = pool
        self._uuids = UuidTable()
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """Key -> lock of those that want the same now: the first one decodes it for all."""

    async def load(
        self, part: MediaPart, field: str, owner: Owner, seconds: float, max_tokens: int | None = None
    ) -> StoredPart:
        """The part in the store, with one reference to each item. A video of more than `max_tokens` is left undone.

        Raises `ParameterError`, `RequestError` and `StoreFull`.
        """
        if len(part.uuid) > MAX_UUID_CHARS:
            message = f"uuid has {len(part.uuid)} characters; at most {MAX_UUID_CHARS} are allowed"
            raise ParameterError(field, message)
        kind = kind_of(part)
        settings = DecodeSettings(owner.families[kind], owner.cache_salt, kind)
        name = _name(settings, owner.tenant, part.uuid)
        if not (part.url or part.data or (isinstance(part, VideoPart) and part.frames)):
            return self._kept(part.uuid, name, kind, field)
        data, frame_sizes = await self._read(part, field, seconds)
        job = DecodeJob(settings, frame_sizes)
        key = _key(job, data) if len(data) < LARGE_BYTES else await asyncio.to_thread(_key, job, data)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            stored = self._store.take(key)
            if stored is None:
                bounded = msgspec.structs.replace(job, max_tokens=max_tokens)
                stored = await self._pool.decode(data, key, bounded, field, owner, owner.tenant)
        if part.uuid:
            self._uuids.add(name, key)
        return stored

    async def _read(self, part: MediaPart, field: str, seconds: float) -> tuple[bytes | memoryview, tuple[int, ...]]:
        """The bytes of a part, and where they are those of a video's frames, their sizes."""
        if isinstance(part, ImagePart):
            return await self._source.read(part, field, seconds), ()
        found = await self._source.read_video(part, field, seconds)
        if not isinstance(found, tuple):
            return found, ()
        return b"".join(found), tuple(map(len, found))

    def _kept(self, uuid: str, name: bytes, kind: MediaKind, field: str) -> StoredPart:
        """The part that a client sent before by that name."""
        if not uuid:
            raise ParameterError(field, f"has no {kind}: send its url, its bytes, or the uuid of one sent before")
        key = self._uuids.find(name)
        found = None if key is None else self._store.take(key)
        if found is None:
            self._uuids.remove(name)
            message = f"the {kind} of uuid {uuid!r} is not kept here, or not any more; send its bytes again"
            raise ParameterError(field, message, "UNKNOWN_MEDIA")
        return found


def _key(job: DecodeJob, data: bytes | memoryview) -> bytes:
    """Identity of a file, or of pictures, with the settings by which they are decoded."""
    found = hashlib.sha256(job_head(job))
    found.update(data)
    return found.digest()


def _name(settings: DecodeSettings, tenant: str, uuid: str) -> bytes:
    """The name of `UuidTable` for a client's uuid."""
    return hashlib.sha256(msgspec.msgpack.encode((settings, tenant, uuid))).digest() if uuid else b""
