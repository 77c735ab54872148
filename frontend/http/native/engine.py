"""Routes of the status page: GET /v1/status, the state of the whole engine; /v1/requests, the outputs that ended;
/v1/requests/{id}, the state and history of a request; /v1/prefixes, the tree of the prefix cache.

Status and history have the content of `Control.GetStatus` and `Control.ExplainRequest`, under the same names.
"""

import base64
import gzip
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.limits.work_pool import LARGE_BYTES
from quire.proto import api
from quire.proto.messages.introspection import EndedOutput, EndedReply, ExplainReply, PrefixReply, StatusReply, Story
from quire.proto.messages.params import INT64_MAX, ParameterError
from quire.proto.metrics.rates import rates

LIMITS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "block_size",
)
MODEL = (
    "architecture", "task", "dtype", "kv_dtype", "quantization", "device", "num_ranks", "num_kv_tokens", "weight_bytes",
    "kv_bytes", "revision", "modalities",
)  # fmt: skip

Json = dict[str, Any]


def routes(context: FrontendContext) -> list[Route]:
    engine_info = context.engine_info

    async def explain(request: Request) -> Response:
        """`arrival`: of several requests with this id the one with this number."""
        arrival = _number(request, "arrival", 0)
        answer = await engine_info.explain(request.path_params["label"], arrival)
        return await _packed(context, request, lambda: explained(answer))

    async def ended(request: Request) -> Response:
        """`after`: only outputs that ended since `count` was this."""
        answer = await engine_info.ended(_number(request, "after", 0))
        return await _packed(context, request, lambda: _ended(answer))

    async def status(request: Request) -> Response:
        """`after_step`: only step records newer than this one."""
        after_step = _number(request, "after_step", -1)
        # the rates need the steps that this client has seen already
        seen = await engine_info.status()
        info = engine_info.server_info()
        return await _packed(context, request, lambda: seen_engine(seen, after_step) | _facts(info, seen))

    async def prefixes(request: Request) -> Response:
        answer = await engine_info.prefixes()
        return await _packed(context, request, lambda: _prefixes(answer))

    return [
        Route("/v1/requests", ended, methods=["GET"]),
        Route("/v1/requests/{label:path}", explain, methods=["GET"]),
        Route("/v1/status", status, methods=["GET"]),
        Route("/v1/prefixes", prefixes, methods=["GET"]),
    ]


def explained(value: ExplainReply) -> Json:
    """The JSON object of `ExplainRequestResponse`."""
    return {"request_id": value.label, "stories": [_story(story) for story in value.stories]}


def seen_engine(value: StatusReply, after_step: int) -> Json:
    """The JSON object of `GetStatusResponse`; `blocks` is base64 of a little-endian uint16 per block."""
    return {
        "now": value.now,
        "load": msgspec.structs.asdict(value.load),
        "outputs": _objects(value.outputs),
        "blocks": base64.b64encode(value.blocks).decode(),
        "steps": _objects(step for step in value.steps if step.step > after_step),
    }


def _facts(info: api.ServerInfo, seen: StatusReply) -> Json:
    return {
        "version": info.version,
        "state_detail": info.state_detail,
        "model_names": info.model_names,
        "model": {name: getattr(info, name) for name in MODEL},
        "limits": {name: getattr(info, name) for name in LIMITS},
        "rates": rates(seen.steps, seen.now),
    }


def _ended(value: EndedReply) -> Json:
    return {"now": value.now, "count": value.count, "outputs": [_ended_output(output) for output in value.outputs]}


def _ended_output(output: EndedOutput) -> Json:
    return msgspec.structs.asdict(output) | {"usage": msgspec.structs.asdict(output.usage)}


def _prefixes(value: PrefixReply) -> Json:
    """Base64 of a little-endian int32, and of a uint16, per block."""
    return {"parents": base64.b64encode(value.parents).decode(), "readers": base64.b64encode(value.readers).decode()}


def _story(story: Story) -> Json:
    usage = msgspec.structs.asdict(story.usage)
    return msgspec.structs.asdict(story) | {"usage": usage, "moments": _objects(story.moments)}


def _objects(values: Iterable[msgspec.Struct]) -> list[Json]:
    return [msgspec.structs.asdict(value) for value in values]


async def _packed(context: FrontendContext, request: Request, make: Callable[[], Json]) -> Response:
    """The response with what `make` returns, made in a thread, and small where the caller can unpack it: 50 000 blocks,
    asked for once a second, are 130 KB of base64 and mostly runs.
    """
    offered = request.headers.get("accept-encoding", "").split(",")
    takes_gzip = any(one.partition(";")[0].strip().lower() == "gzip" for one in offered)

    def encode() -> bytes:
        body = msgspec.json.encode(make())
        return gzip.compress(body, 1) if takes_gzip else body

    body = await context.answers.run(LARGE_BYTES, lambda _: encode())
    headers = {"cache-control": "no-store", "vary": "accept-encoding"}
    if takes_gzip:
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type="application/json")


def _number(request: Request, name: str, least: int) -> int:
    """A whole number of the query string, `least` where it is not given. Raises `ParameterError`."""
    text = request.query_params.get(name, str(least))
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(text) <= INT64_MAX):
        raise ParameterError(name, f"must be a whole number, {least} for all that is kept, got {text[:40]!r}")
    return int(text)
