"""One image on its way into the store: its bytes from where they are, its pixels from the pool."""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from quire.frontend.media.decode.decode_job import DecodeSettings, job_head
from quire.frontend.media.decode.decode_pool import DecodePool
from quire.frontend.media.families.table import MediaFamily
from quire.frontend.media.store import MediaStore, StoredPart
from quire.frontend.media.uuid_table import MAX_UUID_CHARS, UuidTable
from quire.proto.api import ImagePart
from quire.proto.messages.params import ParameterError

LARGE_BYTES = 64 << 10
"""Size from which bytes are hashed in a thread, beside the event loop."""


class BytesSource(Protocol):
    """The place that the bytes of images come from."""

    async def read(self, part: ImagePart, field: str, seconds: float) -> bytes | memoryview:
        """The bytes of an image's file. Raises `ParameterError` on `field`, and `RequestError`."""


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """A request as its images know it."""

    tenant: str
    """The API key's name."""
    cache_salt: str


class ItemLoader:
    """One per frontend."""

    def __init__(self, family: MediaFamily, source: BytesSource, store: MediaStore, pool: DecodePool) -> None:
        self._family = family
        self._source = source
        self._store = store
        self._pool = pool
        self._uuids = UuidTable()
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        """Key -> lock of those that want the same image now: the first one decodes it for all."""

    async def load(self, part: ImagePart, field: str, owner: Owner, seconds: float) -> StoredPart:
        """The image in the store, with one reference to each item.

        Raises `ParameterError`, `RequestError` and `StoreFull`.
        """
        if len(part.uuid) > MAX_UUID_CHARS:
            message = f"uuid has {len(part.uuid)} characters; at most {MAX_UUID_CHARS} are allowed"
            raise ParameterError(field, message)
        settings = DecodeSettings(self._family, owner.cache_salt)
        name = _name(settings, owner.tenant, part.uuid)
        if not (part.url or part.data):
            return self._kept(part.uuid, name, field)
        data = await self._source.read(part, field, seconds)
        key = _key(settings, data) if len(data) < LARGE_BYTES else await asyncio.to_thread(_key, settings, data)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            found = self._store.take(key)
            if found is None:
                found = await self._pool.decode(data, key, settings, field, owner)
        if part.uuid:
            self._uuids.add(name, key)
        return found

    def _kept(self, uuid: str, name: bytes, field: str) -> StoredPart:
        """The image that a client sent before by that name."""
        if not uuid:
            raise ParameterError(field, "has no image: send its url, its bytes, or the uuid of one sent before")
        key = self._uuids.find(name)
        found = None if key is None else self._store.take(key)
        if found is None:
            self._uuids.remove(name)
            message = f"the image of uuid {uuid!r} is not kept here, or not any more; send its bytes again"
            raise ParameterError(field, message, "UNKNOWN_MEDIA")
        return found


def _key(settings: DecodeSettings, data: bytes | memoryview) -> bytes:
    """Identity of a file with the settings by which it is decoded."""
    found = hashlib.sha256(job_head(settings))
    found.update(data)
    return found.digest()


def _name(settings: DecodeSettings, tenant: str, uuid: str) -> bytes:
    """The name of `UuidTable` for a client's uuid."""
    return hashlib.sha256(msgspec.msgpack.encode((settings, tenant, uuid))).digest() if uuid else b""
