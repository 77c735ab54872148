"""`/v1/responses`: create, stream, run in the background, retrieve, cancel, delete, list input items."""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.call import Call
from quire.frontend.context import FrontendContext
from quire.frontend.errors import as_request_error, not_supported
from quire.frontend.http import body
from quire.frontend.http.answer import json_response
from quire.frontend.http.call import call_of
from quire.frontend.http.fields.conversation import count_tokens, renamed
from quire.frontend.http.openai.responses.background import Background
from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.items import kept
from quire.frontend.http.openai.responses.store import ResponseStore, Stored
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.frontend.http.sse import data, event_stream
from quire.frontend.limits.byte_budget import body_size
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.request_stream import RequestStream
from quire.proto.api import GenerateRequest, RequestError
from quire.proto.messages.params import ParameterError

log = logging.getLogger("quire.frontend")

ID = re.compile(r"resp_[0-9a-f]{32}")
NAMES = {
    "chat$": "input",
    r"chat\.messages": "input",
    r"chat\.template_kwargs": "chat_template_kwargs",
    r"response_format\.json_schema": "text.format",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
}
GONE = "the frontend that made this response ended before it could store it, or its store failed"
MAX_PAGE = 100


def routes(context: FrontendContext) -> list[Route]:
    responses = Responses(context, ResponseStore(context.config.run_dir, context.config.max_stored_response_bytes))
    return [
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/responses/{id}", responses.retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", responses.input_items, methods=["GET"]),
    ]


class Making:
    """One response on its way: what was asked, what the engine is asked, what has become of it."""

    def __init__(self, asked: ResponseRequest, generate: GenerateRequest, call: Call, growing: GrowingResponse) -> None:
        self.asked = asked
        self.generate = generate
        self.call = call
        self.growing = growing

    @property
    def id(self) -> str:
        id: str = self.growing.answer["id"]
        return id

    async def read(self, stream: RequestStream | ParsedStream) -> None:
        """To the end, for nobody who watches. Raises `RequestError`."""
        while events := await stream.take():
            for event in events:
                for _ in self.growing.events(event):
                    continue


class Responses:
    """The handlers. Label of a response in the engine is its id, so that any frontend can end it."""

    def __init__(self, context: FrontendContext, store: ResponseStore) -> None:
        self._context = context
        self._store = store
        self._background = Background(store)

    async def create(self, request: Request) -> Response:
        asked = await body.read(request, ResponseRequest)
        asked.check()
        earlier = await self._earlier(asked)
        id = f"resp_{secrets.token_hex(16)}"
        with renamed(NAMES):
            size = body_size() + sum(map(len, earlier))
            generate = await self._context.bodies.run(size, lambda _: asked.request(id, earlier))
        growing = GrowingResponse(asked, id, self._context.engine_info.server_info())
        making = Making(asked, generate, call_of(request, asked.stream), growing)
        if asked.background:
            begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._background.start(self._make(making, begun))
            return _answer(await asyncio.shield(begun))
        if asked.stream:
            return event_stream(self._items(making), lambda error, _: _failed(making.growing, error))
        with renamed(NAMES):
            async with self._context.pipeline.open(generate, making.call) as stream:
                await making.read(stream)
        await self._count(making)
        await self._keep(making)
        return json_response(making.growing.answer)

    async def retrieve(self, request: Request) -> Response:
        _refuse_parameters(request)
        return _answer(_shown(await self._store.get(_id(request))))

    async def cancel(self, request: Request) -> Response:
        id = _id(request)
        stored = await self._store.get(id)
        if not msgspec.json.decode(stored.answer)["background"]:
            raise ParameterError("id", "only a response made with background can be cancelled")
        stored = await self._store.cancel(id)
        await self._stop(id)
        return _answer(_shown(stored))

    async def delete(self, request: Request) -> Response:
        id = _id(request)
        stored = await self._store.get(id)
        await self._store.delete(id)
        if stored.status == "in_progress":
            await self._stop(id)
        return json_response({"id": id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        _refuse_parameters(request, "limit", "order", "after")
        items: list[dict[str, Any]] = msgspec.json.decode((await self._store.get(_id(request))).input)
        return json_response(_page(items, request))

    # ---- making

    async def _earlier(self, asked: ResponseRequest) -> list[msgspec.Raw]:
        """The items of the responses this one continues."""
        if asked.previous_response_id is None:
            return []
        if not ID.fullmatch(asked.previous_response_id):
            raise ParameterError("previous_response_id", "is no id of a response")
        items: list[msgspec.Raw] = []
        for stored in await self._store.chain(asked.previous_response_id):
            if stored.status not in ("completed", "incomplete"):
                message = f"{stored.id} is {stored.status}; only one that ended can be continued"
                raise ParameterError("previous_response_id", message)
            items += msgspec.json.decode(stored.input, type=list[msgspec.Raw])
            items += msgspec.json.decode(stored.answer, type=_Output).output
        return items

    async def _make(self, making: Making, begun: asyncio.Future[bytes]) -> None:
        """In the background. `begun` gets the response as it is once it is accepted and stored, or why it is not."""
        growing, id = making.growing, making.id
        try:
            with renamed(NAMES):
                async with self._context.pipeline.open(making.generate, making.call) as stream:
                    answer = msgspec.json.encode(growing.answer)
                    await self._store.put(
                        id, making.asked.previous_response_id or "", "in_progress", *self._kept(making)
                    )
                    self._background.lease(id)
                    begun.set_result(answer)
                    await making.read(stream)
            with self._context.pipeline.finishing():
                await self._count(making)
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

    async def _items(self, making: Making) -> AsyncGenerator[bytes, None]:
        growing = making.growing
        with renamed(NAMES):
            async with self._context.pipeline.open(making.generate, making.call) as stream:
                while events := await stream.take():
                    if items := b"".join(_item(one) for event in events for one in growing.events(event)):
                        yield items
        await self._count(making)
        try:
            await self._keep(making)
        except RequestError:  # the client has all of it, and hears that nobody will retrieve it
            making.growing.answer["store"] = False
        yield _item(growing.ending())

    async def _count(self, making: Making) -> None:
        if reasoning := making.growing.reasoning:
            making.growing.count_reasoning(await count_tokens(self._context, reasoning))

    async def _keep(self, making: Making) -> None:
        if making.asked.is_stored:
            previous, status = making.asked.previous_response_id or "", making.growing.status
            await self._store.put(making.id, previous, status, *self._kept(making))

    def _kept(self, making: Making) -> tuple[bytes, bytes]:
        return msgspec.json.encode(kept(making.asked.input)), msgspec.json.encode(making.growing.answer)

    async def _stop(self, id: str) -> None:
        self._background.stop(id)
        await self._context.engine_info.abort([id])


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    if not ID.fullmatch(id):
        raise RequestError("UNKNOWN_REQUEST", f"{id[:64]!r} is no id of a response", field="id")
    return id


def _refuse_parameters(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise not_supported(name[:64])


def _shown(stored: Stored) -> bytes:
    """The response object; where it was ended from outside, its status says so."""
    answer: dict[str, Any] = msgspec.json.decode(stored.answer)
    if answer["status"] == stored.status:
        return stored.answer
    answer["status"] = stored.status
    if stored.status == "failed":
        answer["error"] = {"code": "server_error", "message": GONE}
    return msgspec.json.encode(answer)


def _page(items: Sequence[dict[str, Any]], request: Request) -> dict[str, Any]:
    """Newest first unless asked otherwise."""
    order, after, limit = (request.query_params.get(name) for name in ("order", "after", "limit"))
    if order not in (None, "asc", "desc"):
        raise ParameterError("order", f"must be asc or desc, got {order[:64]!r}")
    if limit is not None and not (re.fullmatch("[0-9]{1,3}", limit) and 1 <= int(limit) <= MAX_PAGE):
        raise ParameterError("limit", f"must be 1 to {MAX_PAGE}, got {limit[:64]!r}")
    listed = list(items) if order == "asc" else list(items)[::-1]
    ids = [item["id"] for item in listed]
    if after is not None and after not in ids:
        raise ParameterError("after", f"{after[:64]!r} is none of these items")
    start = ids.index(after) + 1 if after is not None else 0
    page = listed[start : start + int(limit or 20)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(listed),
    }


def _item(event: dict[str, Any]) -> bytes:
    return data(event, event["type"])


def _failed(growing: GrowingResponse, error: RequestError) -> bytes:
    growing.fail(error)
    return _item(growing.ending())


def _answer(text: bytes) -> Response:
    return Response(text, media_type="application/json")
