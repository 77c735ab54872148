"""Probes and facts: GET /health (also /v1/health and /ping), /live, /ready, /version, /load.

A probe answers 200, or 503, with the state word. `/load` has vLLM's field, for balancers that know it.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_response


def routes(context: FrontendContext) -> list[Route]:
    health = context.health

    async def up(request: Request) -> Response:
        return _verdict(health.is_up, health.state)

    async def live(request: Request) -> Response:
        return _verdict(health.is_live, health.state)

    async def ready(request: Request) -> Response:
        return _verdict(health.is_ready, health.state)

    async def version(request: Request) -> Response:
        return json_response({"version": context.engine_info.version})

    async def load(request: Request) -> Response:
        """Requests open in this frontend process."""
        return json_response({"server_load": context.pipeline.num_open})

    return [
        Route("/health", up, methods=["GET"]),
        Route("/v1/health", up, methods=["GET"]),
        Route("/ping", up, methods=["GET", "POST"]),
        Route("/live", live, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/load", load, methods=["GET"]),
    ]


def _verdict(good: bool, state: str) -> Response:
    """The word and no more: these paths need no key, and what went wrong may name files of this machine."""
    response = json_response({"status": state}, 200 if good else 503)
    response.headers["cache-control"] = "no-store"
    if not good and state != "failed":
        response.headers["retry-after"] = "1"
    return response
