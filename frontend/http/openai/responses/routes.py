"""`/v1/responses`: create, stream, run in the background, retrieve, cancel, delete, list input items."""

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
from quire.frontend.http.openai.responses.background import BackgroundResponses
from quire.frontend.http.openai.responses.database import StoredResponse
from quire.frontend.http.openai.responses.events import GrowingResponse
from quire.frontend.http.openai.responses.job import NAMES, ResponseJob
from quire.frontend.http.openai.responses.query_parameters import page, refuse_parameters
from quire.frontend.http.openai.responses.store import ResponseStore
from quire.frontend.http.openai.responses.types import ResponseRequest
from quire.frontend.http.sse import event_stream
from quire.frontend.limits.byte_budget import body_size
from quire.proto.api import RequestError
from quire.proto.messages.params import ParameterError

ID = re.compile(r"resp_[0-9a-f]{32}")
GONE = "the frontend that made this response ended before it could store it, or its store failed"


def routes(context: FrontendContext) -> list[Route]:
    responses = Responses(context, ResponseStore(context.config.run_dir, context.config.max_stored_response_bytes))
    return [
        Route("/v1/responses", responses.create, methods=["POST"]),
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
        earlier = await self._earlier(payload)
        id = f"resp_{secrets.token_hex(16)}"
        with renamed(NAMES):
            size = body_size() + sum(map(len, earlier))
            generate = await self._context.bodies.run(size, lambda _: payload.request(id, earlier))
        growing = GrowingResponse(payload, id, self._context.engine_info.server_info())
        job = ResponseJob(self._context, self._store, payload, generate, call_of(request, payload.stream), growing)
        if payload.background:
            begun: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._background.start(job.run_in_background(self._background, begun))
            return _answer(await asyncio.shield(begun))
        if payload.stream:
            return event_stream(job.stream(), lambda error, _: job.failed(error))
        await job.run()
        return json_response(growing.answer)

    async def retrieve(self, request: Request) -> Response:
        refuse_parameters(request)
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
        refuse_parameters(request, "limit", "order", "after")
        items: list[dict[str, Any]] = msgspec.json.decode((await self._store.get(_id(request))).input)
        return json_response(page(items, request))

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
            items += msgspec.json.decode(stored.input, type=list[msgspec.Raw])
            items += msgspec.json.decode(stored.answer, type=_Output).output
        return items

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


def _shown(stored: StoredResponse) -> bytes:
    """The response object, with the stored status where it was ended from outside."""
    answer: dict[str, Any] = msgspec.json.decode(stored.answer)
    if answer["status"] == stored.status:
        return stored.answer
    answer["status"] = stored.status
    if stored.status == "failed":
        answer["error"] = {"code": "server_error", "message": GONE}
    return msgspec.json.encode(answer)


def _answer(text: bytes) -> Response:
    return Response(text, media_type="application/json")
