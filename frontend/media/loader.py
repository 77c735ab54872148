"""The images and videos of requests: loaded into the store, and kept there until their requests end."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.frontend.media.decode.decode_pool import RETRY_SECONDS, DecodePool
from quire.frontend.media.families.table import MediaFamily
from quire.frontend.media.item_loader import BytesSource, ItemLoader, Owner
from quire.frontend.media.kind import MediaKind, MediaPart
from quire.frontend.media.store import MediaStore, StoredMedia, StoredPart, StoreFull, stored_cost, total_cost
from quire.frontend.metrics.metrics import Metrics
from quire.proto.api import RequestError
from quire.proto.messages.media import MAX_ITEMS
from quire.proto.messages.params import ParameterError

READ_AHEAD = 2
"""Number of images of one request that are read while all processes decode others of it."""


class LoadedMedia:
    """The images and videos of a request in their order, to which it refers until `release`."""

    def __init__(self, store: MediaStore, parts: Sequence[StoredPart]) -> None:
        self.parts = tuple(parts)
        self._store = store
        self._released = False

    @property
    def items(self) -> tuple[StoredMedia, ...]:
        """The items of all of them."""
        return tuple(item for part in self.parts for item in part.items)

    def release(self) -> None:
        """Give the references back, at the request's terminal event. A second call does nothing."""
        if not self._released:
            self._released = True
            for part in self.parts:
                self._store.release(part)


class MediaLoader:
    """One per frontend."""

    def __init__(
        self,
        family: MediaFamily,
        source: BytesSource,
        folder: Path,
        metrics: Metrics,
        *,
        num_processes: int,
        max_image_pixels: int,
        max_store_bytes: int,
    ) -> None:
        """`folder`: that of this frontend's life, which is made here. Raises `ValueError` and `OSError`."""
        largest = stored_cost(family.max_bytes, family.max_items)
        if max_store_bytes < largest:
            message = f"{max_store_bytes} is less than the model's largest image takes, {largest}"
            raise ValueError(f"media_store_bytes: {message}; raise it, or lower max_pixels in mm_processor_kwargs")
        self.family = family
        self.store = MediaStore(folder, max_store_bytes, metrics)
        self._pool = DecodePool(self.store, num_processes, max_image_pixels, metrics)
        self._item_loader = ItemLoader(source, self.store, self._pool)
        self._at_once = num_processes + READ_AHEAD

    async def start(self) -> None:
        """Start one process; others start with the images that need them. Raises `SandboxLost`."""
        await self._pool.start()

    async def close(self) -> None:
        """End the processes and remove the folder: no request refers to it any more."""
        await self._pool.close()
        await asyncio.to_thread(self.store.close)

    async def load(
        self,
        parts: Sequence[MediaPart],
        *,
        fields: Sequence[str],
        tenant: str,
        cache_salt: str,
        seconds: float,
        max_tokens: int | None = None,
        families: Mapping[MediaKind, MediaFamily] = {},
    ) -> LoadedMedia:
        """The images and videos of a request; `fields` name its parts. What fails leaves no reference behind.

        `max_tokens`: most of all of them together. What exceeds it, or has more items than a prompt may have, ends the
        work on those that follow: an image of some bytes may take a second to decode, and a name of a few stand for
        hundreds of items. `families`: the model's with settings of the request, by the kind of part they are for.

        Raises `ParameterError` on the field of a part that cannot be taken, and `RequestError`: DEADLINE after
        `seconds`, QUEUE_FULL where there is no room now.
        """
        owner = Owner(tenant, cache_salt, {"image": self.family, "video": self.family, **families})
        now = asyncio.get_running_loop().time
        until = now() + seconds
        loaded: dict[int, StoredPart] = {}
        numbers = iter(range(len(parts)))
        num_tokens = num_items = 0

        async def load_some() -> None:
            nonlocal num_tokens, num_items
            for number in numbers:  # all of these tasks take from one iterator
                field = fields[number]
                room = None if max_tokens is None else max(0, max_tokens - num_tokens)
                try:
                    loaded[number] = await self._item_loader.load(parts[number], field, owner, until - now(), room)
                except StoreFull as error:
                    raise self._no_room(list(loaded.values()), error.cost, field) from error
                num_tokens += loaded[number].num_tokens
                num_items += len(loaded[number].items)
                _check_items(num_items, field)
                if max_tokens is not None and num_tokens > max_tokens:
                    message = f"{len(loaded)} images and videos up to this one take {num_tokens} tokens"
                    remedy = f"there is room for {max(0, max_tokens)}; send fewer or smaller ones"
                    raise ParameterError(field, f"{message}; {remedy}", "CONTEXT_LENGTH_EXCEEDED")
                await asyncio.sleep(0)  # what is kept is found without a pause, and others want their turn

        try:
            async with asyncio.timeout_at(until) as scope, asyncio.TaskGroup() as group:
                for _ in range(min(self._at_once, len(parts))):
                    group.create_task(load_some())
        except BaseException as error:
            LoadedMedia(self.store, list(loaded.values())).release()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            if isinstance(error, TimeoutError) and scope.expired():
                raise RequestError(
                    "DEADLINE", "the time-out passed before the images and videos were decoded"
                ) from None
            raise
        return LoadedMedia(self.store, [loaded[number] for number in range(len(parts))])

    def _no_room(self, parts: Sequence[StoredPart], cost: int, field: str) -> Exception:
        """The error of a request that has these and needs room for another one."""
        own = cost + total_cost(parts)
        most = self.store.max_bytes
        if own > most:
            message = f"the images and videos of this request take {own} bytes up to this one; at most {most} are kept"
            return ParameterError(field, f"{message}; send fewer", "EXCEEDS_CAPACITY")
        taken = f"{self.store.num_used_bytes} of {most} bytes"
        message = f"images and videos of other requests take {taken}; send the request again"
        return RequestError("QUEUE_FULL", message, field=field, retry_after_seconds=RETRY_SECONDS)


def _check_items(num_items: int, field: str) -> None:
    """Raises `ParameterError` on the field of the part by which a prompt has too many items."""
    if num_items > MAX_ITEMS:
        message = f"the images and videos up to this one have {num_items} items"
        meant = "one for each run of frames that is read as one"
        raise ParameterError(field, f"{message}, {meant}; a prompt may have {MAX_ITEMS}; send fewer or shorter ones")
