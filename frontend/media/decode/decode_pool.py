"""The processes that decode images and videos, and the way of one through one of them into the store."""

import asyncio
import os
from pathlib import Path

import msgspec

from quire.frontend.fault_log import FaultLog
from quire.frontend.media.decode.decode_job import (
    Answer,
    Decoded,
    DecodeJob,
    DecodeSettings,
    DecodeSetup,
    NotWritten,
    Refused,
    TooLong,
    item_file,
    job_head,
)
from quire.frontend.media.decode.turns import FairTurns
from quire.frontend.media.kind import MediaKind
from quire.frontend.media.store import MediaStore, StoredMedia, StoredPart
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxLost, SandboxTimeout
from quire.frontend.sandbox.parent import Sandbox
from quire.proto.api import RequestError
from quire.proto.messages.media import MAX_ITEMS
from quire.proto.messages.params import ParameterError

MODULE = "quire.frontend.media.decode.decode_child"
SECONDS: dict[MediaKind, float] = {"image": 10.0, "video": 60.0}
"""CPU time of one."""
CLOCK_SECONDS: dict[MediaKind, float] = {"image": 60.0, "video": 180.0}
"""Time that one may take, on a busy machine or where a process starts first."""
PROCESS_BYTES = 512 << 20
"""Address space of a process beside its image."""
PIXEL_BYTES = 24
"""Most bytes that a pixel takes while it is decoded: the canvases of an animation, copies in other modes."""
MAX_ANSWER_BYTES = (64 << 10) + 128 * MAX_ITEMS
"""More than as many items take as a prompt may have."""
RETRY_SECONDS = 1.0
INVALID = "INVALID_MEDIA"

_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class DecodePool:
    """One per frontend. The first process starts with `start`, the others with images that find those busy.

    Each writes to files of its own in the store's folder, which are there besides what the store counts.
    """

    def __init__(self, store: MediaStore, num_processes: int, max_image_pixels: int, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._files = [str(store.folder / f"{place}.part") for place in range(num_processes)]
        setups = [msgspec.msgpack.encode(DecodeSetup(file, max_image_pixels, store.max_bytes)) for file in self._files]
        memory_bytes = PROCESS_BYTES + PIXEL_BYTES * max_image_pixels
        self._sandboxes = [
            Sandbox(MODULE, setup, memory_bytes=memory_bytes, max_answer_bytes=MAX_ANSWER_BYTES) for setup in setups
        ]
        self._turns = FairTurns(num_processes)
        self._video_turns = FairTurns(max(1, num_processes - 1))
        """Those of videos, before they take a place: one of several is left to images."""
        self._work: set[asyncio.Task[StoredPart]] = set()
        self._fault_log = FaultLog("media store: images are written again")

    async def start(self) -> None:
        """Start one process. Raises `SandboxLost` when it does not start."""
        await self._sandboxes[0].start()

    async def close(self) -> None:
        """End the processes; images that are being decoded fail."""
        for sandbox in self._sandboxes:
            await sandbox.close()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def decode(
        self, data: bytes | memoryview, key: bytes, job: DecodeJob, field: str, owner: object, tenant: str
    ) -> StoredPart:
        """The image or video in the store, with one reference to each item, and found there by `key`.

        `owner`: the request, of a tenant, whose turn it is.

        Raises `ParameterError` on `field` for what is refused, takes too long or breaks its process,
        `RequestError` where the process fails by itself or the disk is full, and `StoreFull`.
        """
        if job.settings.kind == "image":
            return await self._decode(data, key, job, field, owner, tenant)
        turn = await self._video_turns.take(owner, tenant)
        try:
            return await self._decode(data, key, job, field, owner, tenant)
        finally:
            self._video_turns.give_back(turn)

    async def _decode(
        self, data: bytes | memoryview, key: bytes, job: DecodeJob, field: str, owner: object, tenant: str
    ) -> StoredPart:
        """The same, at the next place. An image that is left by its caller is finished there; a video ends."""
        place = await self._turns.take(owner, tenant)
        work = asyncio.create_task(self._decode_at(place, data, key, job, field))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        work.add_done_callback(lambda _: self._turns.give_back(place))
        try:
            # to finish an image costs less than to start another process; it may be sent again, too
            return await (asyncio.shield(work) if job.settings.kind == "image" else work)
        except asyncio.CancelledError:
            work.add_done_callback(self._unwanted)
            raise

    async def _decode_at(
        self, place: int, data: bytes | memoryview, key: bytes, job: DecodeJob, field: str
    ) -> StoredPart:
        """The same, at this place."""
        answer = await self._answer(place, data, job, field)
        if isinstance(answer, NotWritten) and self._store.make_place():
            answer = await self._answer(place, data, job, field)
        if isinstance(answer, NotWritten):
            raise self._not_written(answer.error, field)
        self._fault_log.end()
        part = self._part(answer, job.settings)
        file = self._files[place]
        try:
            self._store.add([Path(item_file(file, index)) for index in range(len(part.items))], part, key)
        except OSError as error:  # somebody else, a cleaner of old files perhaps, took some of them
            raise self._not_written(os.strerror(error.errno or 0), field) from error
        return part

    def _unwanted(self, work: asyncio.Task[StoredPart]) -> None:
        """Give back the references of a caller that has left."""
        if not work.cancelled() and work.exception() is None:
            self._store.release(work.result())

    def _part(self, answer: Decoded, settings: DecodeSettings) -> StoredPart:
        family = settings.family
        folder = self._store.folder.name
        items = [
            StoredMedia(
                item.digest,
                item.grid,
                family.num_tokens(item.grid),
                folder,
                item.num_bytes,
                family.num_breaks(item.grid),
            )
            for item in answer.items
        ]
        return StoredPart(tuple(items), settings.kind, answer.seconds, answer.columns)

    async def _answer(self, place: int, data: bytes | memoryview, job: DecodeJob, field: str) -> Decoded | NotWritten:
        sandbox = self._sandboxes[place]
        kind = job.settings.kind
        seconds = SECONDS[kind]
        try:
            with self._metrics.timed("media_decode_seconds"):
                async with asyncio.timeout(CLOCK_SECONDS[kind]):
                    answered = await sandbox.call(data, seconds, stop_when_left=True, head=job_head(job))
        except (asyncio.CancelledError, TimeoutError) as error:
            self._remove_files(place)
            if isinstance(error, asyncio.CancelledError):
                raise
            message = f"this {kind} was not decoded within {CLOCK_SECONDS[kind]:g} s; send the request again"
            raise RequestError("QUEUE_FULL", message, field=field, retry_after_seconds=RETRY_SECONDS) from error
        except (SandboxTimeout, SandboxCrashed, SandboxLost) as error:
            self._remove_files(place)  # the process may have died while it wrote
            if isinstance(error, SandboxLost):
                raise
            slow = f"took more than {seconds:g} s to decode; send a smaller {kind}"
            broke = "broke the process that decoded it; send it in another format"
            raise ParameterError(field, slow if isinstance(error, SandboxTimeout) else broke, INVALID) from error
        answer = _answers.decode(answered)
        if isinstance(answer, Refused):
            raise ParameterError(field, answer.message, INVALID)
        if isinstance(answer, TooLong):
            message = f"takes {answer.num_tokens} tokens; there is room for {job.max_tokens}"
            remedy = "ask for fewer frames (fps, num_frames) or smaller ones (max_pixels)"
            raise ParameterError(field, f"{message}; {remedy}", "CONTEXT_LENGTH_EXCEEDED")
        return answer

    def _remove_files(self, place: int) -> None:
        """Remove what the process of a place has written."""
        for index in range(MAX_ITEMS):  # in the order of writing; to look through the folder may take long
            try:
                os.unlink(item_file(self._files[place], index))
            except FileNotFoundError:
                return

    def _not_written(self, error: str, field: str) -> RequestError:
        """The error of a request whose pixels found no place on the disk; the operator reads of it, too."""
        remedy = "free space there, or lower --media-store-bytes"
        self._fault_log.begin(f"media store: {self._store.folder}: {error}; {remedy}")
        message = f"the server has no place for its pixels: {error}; send the request again"
        return RequestError("QUEUE_FULL", message, field=field, retry_after_seconds=RETRY_SECONDS)
