"""GET /v1/requests/{id}: the state and history of a request. GET /v1/status: the state of the whole engine.

The same content as `Control.ExplainRequest` and `Control.GetStatus`, under the same names.
"""

import base64
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_response
from quire.proto.messages.introspection import ExplainReply, StatusReply, Story
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


def routes(context: FrontendContext) -> list[Route]:
    async def explain(request: Request) -> Response:
        return json_response(explained(await context.engine_info.explain(request.path_params["label"])))

    async def status(request: Request) -> Response:
        """`after_step`: only step records newer than this one."""
        after_step = _after_step(request)
        # the rates need the steps that this client has seen already
        seen = await context.engine_info.status()
        info = context.engine_info.server_info()
        fields = {
            "version": info.version,
            "state_detail": info.state_detail,
            "model_names": info.model_names,
            "limits": {name: getattr(info, name) for name in LIMITS},
            "rates": rates(seen.steps, seen.now),
        }
        return json_response(seen_engine(seen, after_step) | fields)

    return [
        Route("/v1/requests/{label:path}", explain, methods=["GET"]),
        Route("/v1/status", status, methods=["GET"]),
    ]


def explained(value: ExplainReply) -> dict[str, Any]:
    """The JSON object of `ExplainRequestResponse`."""
    return {"request_id": value.label, "stories": [_story(story) for story in value.stories]}


def seen_engine(value: StatusReply, after_step: int) -> dict[str, Any]:
    """The JSON object of `GetStatusResponse`; `blocks` is base64 of a little-endian uint16 per block."""
    return {
        "now": value.now,
        "load": msgspec.structs.asdict(value.load),
        "outputs": _objects(value.outputs),
        "blocks": base64.b64encode(value.blocks).decode(),
        "steps": _objects(step for step in value.steps if step.step > after_step),
    }


def _story(story: Story) -> dict[str, Any]:
    usage = msgspec.structs.asdict(story.usage)
    return msgspec.structs.asdict(story) | {"usage": usage, "moments": _objects(story.moments)}


def _objects(values: Iterable[msgspec.Struct]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(value) for value in values]


def _after_step(request: Request) -> int:
    text = request.query_params.get("after_step", "-1")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and -1 <= int(text) <= INT64_MAX):
        raise ParameterError("after_step", f"must be a step number, or -1 for all that are kept, got {text[:40]!r}")
    return int(text)
