"""The making of one response: what a client requested, the request to the engine, and the response as it grows."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.errors import as_request_error
from quire.frontend.http.decoding.ignored import note
from quire.frontend.http.fields.conversation import count_tokens, renamed
from quire.frontend.http.openai.responses.asked import AskedResponse
from quire.frontend.http.openai.responses.background import BackgroundResponses
from quire.frontend.http.openai.responses.database import ResponseStatus
from quire.frontend.http.openai.responses.event_log import EventLog
from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.items import stored_items
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.frontend.http.sse import data, in_turns
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.api import Event, GenerateRequest, RequestError

logger = logging.getLogger("quire.frontend")

Json = dict[str, Any]


class ResponseJob:
    """One response on its way. Exactly one of `run`, `run_in_background` and `stream` is called."""

    def __init__(
        self,
        context: FrontendContext,
        store: ResponseStore,
        asked: AskedResponse,
        generate: GenerateRequest,
        call: Call,
        growing: GrowingResponse,
    ) -> None:
        """`asked` is the client's request, `generate` the engine's."""
        self.growing = growing
        self._context = context
        self._store = store
        self._asked = asked
        self._generate = generate
        self._call = call

    @property
    def id(self) -> str:
        id: str = self.growing.answer["id"]
        return id

    async def run(self) -> None:
        """Make and store the whole response. Raises `ParameterError` or `RequestError`."""
        with renamed(self._asked.names):
            async with self._context.pipeline.open(self._generate, self._call) as stream:
                self._note_cut(stream)
                while events := await stream.take():
                    self._grow(events)
        await self._count()
        await self._keep()

    async def run_in_background(
        self, background: BackgroundResponses, begun: asyncio.Future[bytes], log: EventLog | None
    ) -> None:
        """Make the response, whether its client stays or leaves.

        `begun` gets the response as it is once it is accepted and stored, or the error that prevented it. `log` gets
        the events of one that streams.
        """
        growing, id = self.growing, self.id
        try:
            with renamed(self._asked.names):
                async with self._context.pipeline.open(self._generate, self._call) as stream:
                    self._note_cut(stream)
                    answer = msgspec.json.encode(growing.answer)
                    await self._put("in_progress")
                    if log is not None:
                        await log.begin()
                    background.lease(id, log)
                    begun.set_result(answer)
                    while events := await stream.take():
                        grown = self._grow(events)
                        if log is not None:
                            log.append([_item(one) for one in grown])
                            await log.keep()
            with self._context.pipeline.finishing():
                await self._count()
        except Exception as error:
            if not begun.done():
                begun.set_exception(error)
                return
            growing.fail(as_request_error(error))
        try:
            with self._context.pipeline.finishing():
                last = _item(growing.ending())
                rest = await log.rest(last) if log is not None else None
                ids = [item["id"] for item in growing.answer["output"]]
                answer = msgspec.json.encode(growing.answer)
                is_stored = await self._store.finish(id, growing.status, answer, ids, rest)
                if log is not None and is_stored:  # who is told of the end finds it in the store
                    log.append([last])
        except RequestError as error:  # its lease runs out
            logger.warning("response %s: its answer is lost: %s", id, error)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Make and store the response; its events as server-sent items. Raises `ParameterError` or `RequestError`."""
        with renamed(self._asked.names):
            async with self._context.pipeline.open(self._generate, self._call) as stream:
                self._note_cut(stream)
                while events := await stream.take():
                    async for items in in_turns(map(_item, self._grow(events))):  # the last ones hold all logprobs
                        yield items
        await self._count()
        try:
            await self._keep()
        except RequestError:  # the client has all of it, and learns that nobody will retrieve it
            self.growing.answer["store"] = False
        yield _item(self.growing.ending())

    def failed(self, error: RequestError) -> bytes:
        """The last item of a stream that failed."""
        self.growing.fail(error)
        return _item(self.growing.ending())

    def _note_cut(self, stream: RequestStream | ParsedStream) -> None:
        """Note the number of tokens where there is less room than `max_output_tokens` asks for."""
        given = stream.prepared.params.max_tokens
        if given < (self._asked.payload.max_output_tokens or 0):
            note(f"max_tokens={given}")

    def _grow(self, events: Sequence[Event]) -> list[Json]:
        """Let the response grow; the events of the stream that tell it."""
        return [one for event in events for one in self.growing.events(event)]

    async def _count(self) -> None:
        if reasoning := self.growing.reasoning:
            self.growing.count_reasoning(await count_tokens(self._context, reasoning))

    async def _keep(self) -> None:
        if self._asked.payload.is_stored:
            await self._put(self.growing.status)

    async def _put(self, status: ResponseStatus) -> None:
        answer = self.growing.answer
        payload = self._asked.payload

        def read() -> tuple[bytes, list[str]]:
            items, made = stored_items(payload.input)
            return msgspec.json.encode(items), made

        items, made = await self._context.bodies.run(self._asked.size, lambda _: read())
        made += [item["id"] for item in answer["output"]]
        previous = payload.previous_response_id or ""
        await self._store.put(self.id, previous, status, items, msgspec.json.encode(answer), made)


def _item(event: Json) -> bytes:
    return data(event, event["type"])
