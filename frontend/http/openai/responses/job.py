"""The making of one response: what a client requested, the request to the engine, and the response as it grows."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.errors import as_request_error
from quire.frontend.http.fields.conversation import count_tokens, renamed
from quire.frontend.http.openai.responses.background import BackgroundResponses
from quire.frontend.http.openai.responses.database import ResponseStatus
from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.items import stored_items
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.frontend.http.sse import data
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.api import GenerateRequest, RequestError

log = logging.getLogger("quire.frontend")

NAMES = {
    "chat$": "input",
    r"chat\.messages": "input",
    r"chat\.template_kwargs": "chat_template_kwargs",
    r"response_format\.json_schema": "text.format",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
"""Fields of the pipeline's errors as this API names them; see `renamed`."""


class ResponseJob:
    """One response on its way. Exactly one of `run`, `run_in_background` and `stream` is called."""

    def __init__(
        self,
        context: FrontendContext,
        store: ResponseStore,
        payload: ResponseRequest,
        generate: GenerateRequest,
        call: Call,
        growing: GrowingResponse,
    ) -> None:
        """`payload` is the client's request, `generate` the engine's."""
        self.growing = growing
        self._context = context
        self._store = store
        self._payload = payload
        self._generate = generate
        self._call = call

    @property
    def id(self) -> str:
        id: str = self.growing.answer["id"]
        return id

    async def run(self) -> None:
        """Make and store the whole response. Raises `ParameterError` or `RequestError`."""
        with renamed(NAMES):
            async with self._context.pipeline.open(self._generate, self._call) as stream:
                await self._read(stream)
        await self._count()
        await self._keep()

    async def run_in_background(self, background: BackgroundResponses, begun: asyncio.Future[bytes]) -> None:
        """Make the response for nobody who waits.

        `begun` gets the response as it is once it is accepted and stored, or the error that prevented it.
        """
        growing, id = self.growing, self.id
        try:
            with renamed(NAMES):
                async with self._context.pipeline.open(self._generate, self._call) as stream:
                    answer = msgspec.json.encode(growing.answer)
                    await self._put("in_progress")
                    background.lease(id)
                    begun.set_result(answer)
                    await self._read(stream)
            with self._context.pipeline.finishing():
                await self._count()
        except Exception as error:
            if not begun.done():
                begun.set_exception(error)
                return
            growing.fail(as_request_error(error))
        try:
            with self._context.pipeline.finishing():
                await self._store.finish(id, growing.status, msgspec.json.encode(growing.answer))
        except RequestError as error:  # its lease runs out
            log.warning("response %s: its answer is lost: %s", id, error)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Make and store the response; its events as server-sent items. Raises `ParameterError` or `RequestError`."""
        growing = self.growing
        with renamed(NAMES):
            async with self._context.pipeline.open(self._generate, self._call) as stream:
                while events := await stream.take():
                    if items := b"".join(_item(one) for event in events for one in growing.events(event)):
                        yield items
        await self._count()
        try:
            await self._keep()
        except RequestError:  # the client has all of it, and learns that nobody will retrieve it
            growing.answer["store"] = False
        yield _item(growing.ending())

    def failed(self, error: RequestError) -> bytes:
        """The last item of a stream that failed."""
        self.growing.fail(error)
        return _item(self.growing.ending())

    async def _read(self, stream: RequestStream | ParsedStream) -> None:
        """Read the stream to its end. Raises `RequestError`."""
        while events := await stream.take():
            for event in events:
                for _ in self.growing.events(event):
                    continue

    async def _count(self) -> None:
        if reasoning := self.growing.reasoning:
            self.growing.count_reasoning(await count_tokens(self._context, reasoning))

    async def _keep(self) -> None:
        if self._payload.is_stored:
            await self._put(self.growing.status)

    async def _put(self, status: ResponseStatus) -> None:
        items, answer = msgspec.json.encode(stored_items(self._payload.input)), msgspec.json.encode(self.growing.answer)
        await self._store.put(self.id, self._payload.previous_response_id or "", status, items, answer)


def _item(event: dict[str, Any]) -> bytes:
    return data(event, event["type"])
