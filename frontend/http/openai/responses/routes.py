"""`/v1/responses`: create, stream, run in the background, retrieve, cancel, delete, list and count the input."""

import asyncio
import re
import secrets
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http import body
from quire.frontend.http.answer import json_response
from quire.frontend.http.call import call_of
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.openai.responses.asked import NAMES, AskedResponse, references
from quire.frontend.http.openai.responses.background import BackgroundResponses
from quire.frontend.http.openai.responses.event_log import EventLog
from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.follow import failed, follow
from quire.frontend.http.openai.responses.job import ResponseJob
from quire.frontend.http.openai.responses.query_parameters import page, refuse_parameters, starting_after
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.frontend.http.openai.responses.truncation import shortened
from quire.frontend.http.openai.responses.types import InputTokensRequest, ResponseRequest
from quire.frontend.http.sse import event_stream
from quire.frontend.limits.byte_budget import body_size
from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError

ID = re.compile(r"resp_[0-9a-f]{32}")


def routes(context: FrontendContext) -> list[Route]:
    responses = Responses(context, ResponseStore(context.config.run_dir, context.config.max_stored_response_bytes))
    return [
        Route("/v1/responses", responses.create, methods=["POST"]),
        Route("/v1/responses/input_tokens", responses.count, methods=["POST"]),
        Route("/v1/responses/compact", responses.compact, methods=["POST"]),
        Route("/v1/responses/{id}", responses.retrieve, methods=["GET"]),
        Route("/v1/responses/{id}", responses.delete, methods=["DELETE"]),
        Route("/v1/responses/{id}/cancel", responses.cancel, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", responses.input_items, methods=["GET"]),
    ]


class Responses:
    """The handlers. A response's id is its request's label in the engine, so that any frontend can end it."""

    def __init__(self, context: FrontendContext, store: ResponseStore) -> None:
        self._context = context
        self._store = store
        self._background = BackgroundResponses(store)

    async def create(self, request: Request) -> Response:
        payload = await body.read(request, ResponseRequest)
        payload.check()
        asked = await self._asked(payload)
        id = f"resp_{secrets.token_hex(16)}"
        with renamed(NAMES):
            generate = await self._context.bodies.run(asked.size, lambda _: asked.request(id))
        if payload.truncation == "auto":
            with renamed(asked.names):
                generate = await shortened(self._context, generate)
        include_timings = payload.include_timings or self._context.config.enable_timings
        growing = GrowingResponse(payload, asked.tools, id, self._context.engine_info.server_info(), include_timings)
        call = call_of(request, payload.stream, max_tokens_is_bound=True)
        job = ResponseJob(self._context, self._store, asked, generate, call, growing)
        if payload.background:
            log = EventLog(self._store, id) if payload.stream else None
            begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._background.start(job.run_in_background(self._background, begun, log))
            answer = await asyncio.shield(begun)
            return _answer(answer) if log is None else event_stream(follow(self._store, log, id, -1), failed)
        if payload.stream:
            return event_stream(job.stream(), lambda error, _: job.failed(error))
        await job.run()
        return json_response(growing.answer)

    async def count(self, request: Request) -> Response:
        payload = await body.read(request, InputTokensRequest)
        payload.check()
        asked = await self._asked(payload)
        with renamed(NAMES):
            chat = await self._context.bodies.run(asked.size, lambda _: asked.chat())
        with renamed(asked.names):
            tokens = await self._context.pipeline.tokenize(chat, payload.model, call=call_of(request))
        return json_response({"object": "response.input_tokens", "input_tokens": len(tokens.token_ids)})

    async def compact(self, request: Request) -> Response:
        message = "conversations are not compacted here; ask /v1/responses for a summary and go on with that"
        raise RequestError("UNSUPPORTED", message)

    async def retrieve(self, request: Request) -> Response:
        refuse_parameters(request, "include", "include[]", "include_obfuscation", "stream", "starting_after")
        id, after = _id(request), starting_after(request)
        if after is None:
            return _answer((await self._store.get(id)).shown)
        _, pieces = await self._store.events(id, after)
        if not pieces:
            message = "this response was not made with background and stream; leave stream out"
            raise ParameterError("stream", message, "UNSUPPORTED")
        return event_stream(follow(self._store, self._background.log(id), id, after), failed)

    async def cancel(self, request: Request) -> Response:
        id = _id(request)
        stored = await self._store.get(id)
        if not msgspec.json.decode(stored.answer)["background"]:
            raise ParameterError("id", "only a response made with background can be cancelled")
        stored = await self._store.cancel(id)
        await self._stop(id)
        return _answer(stored.shown)

    async def delete(self, request: Request) -> Response:
        id = _id(request)
        stored = await self._store.get(id)
        await self._store.delete(id)
        if stored.status == "in_progress":
            await self._stop(id)
        return json_response({"id": id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        refuse_parameters(request, "limit", "order", "after")
        items: list[dict[str, Any]] = msgspec.json.decode((await self._store.get(_id(request))).input)
        return json_response(page(items, request))

    async def _asked(self, payload: ResponseRequest) -> AskedResponse:
        """The request with what it refers to. Raises `ParameterError` or `RequestError`."""
        earlier = await self._earlier(payload)
        ids = await self._context.bodies.run(body_size(), lambda _: references(payload.input))
        holders = await self._store.holders(list(ids.values())) if ids else []
        return AskedResponse(payload, earlier, ids, holders)

    async def _earlier(self, payload: ResponseRequest) -> list[msgspec.Raw]:
        """The items of the responses that this one continues. Raises `ParameterError` or `RequestError`."""
        if payload.previous_response_id is None:
            return []
        if not ID.fullmatch(payload.previous_response_id):
            raise ParameterError("previous_response_id", "is no id of a response")
        items: list[msgspec.Raw] = []
        for stored in await self._store.chain(payload.previous_response_id):
            if stored.status not in ("completed", "incomplete"):
                message = f"{stored.id} is {stored.status}; only one that ended can be continued"
                raise ParameterError("previous_response_id", message)
            items += stored.items
        return items

    async def _stop(self, id: str) -> None:
        self._background.stop(id)
        await self._context.engine_info.abort([id])


def _id(request: Request) -> str:
    id: str = request.path_params["id"]
    if not ID.fullmatch(id):
        raise RequestError("UNKNOWN_REQUEST", f"{id[:64]!r} is no id of a response", field="id")
    return id


def _answer(text: bytes) -> Response:
    return Response(text, media_type="application/json")
