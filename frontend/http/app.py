"""The HTTP application: every route, and the ASGI layers around them."""

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.frontend.context import FrontendContext
from quire.frontend.http.anthropic import messages, messages_answer
from quire.frontend.http.anthropic import models as anthropic_models
from quire.frontend.http.decoding.ignored import noting
from quire.frontend.http.errors import ErrorLayer
from quire.frontend.http.guard import AnswerHeaders, Guard
from quire.frontend.http.meter import ResponseMeter
from quire.frontend.http.native import (
    completion,
    engine,
    generate,
    health,
    infill,
    llama_server,
    metrics,
    render,
    tokens,
)
from quire.frontend.http.native import status_page as page
from quire.frontend.http.ollama import answer as ollama_answer
from quire.frontend.http.ollama import routes as ollama
from quire.frontend.http.openai import chat, completions, embeddings, models
from quire.frontend.http.openai.responses import routes as responses
from quire.frontend.http.openapi import routes as openapi
from quire.frontend.http.overload import OverloadLayer
from quire.frontend.http.routing.not_served import not_found
from quire.frontend.http.routing.short_paths import short_paths
from quire.frontend.http.score import classify, pooling
from quire.frontend.http.score import routes as score

MODULES = (
    *(page, health, metrics, anthropic_models, models, completions, chat, responses, messages, tokens, engine),
    *(embeddings, score, classify, pooling, completion, infill, render, generate, llama_server, ollama),
)
"""Each has `routes(context) -> list[Route]`."""


def all_routes(context: FrontendContext) -> list[BaseRoute]:
    routes: list[BaseRoute] = [route for module in MODULES for route in module.routes(context)]
    routes += short_paths(list(routes))
    routes += openapi.routes(context, routes)
    return routes


def _allowed(routes: Sequence[BaseRoute], scope: Scope) -> str:
    """The methods of every route with this path; the router names only those of the first one."""
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return ", ".join(sorted(found))


def build_app(context: FrontendContext) -> ASGIApp:
    """The application. Errors are around the rest, so that a refusal of any layer has the same shape; then headers."""
    routes = all_routes(context)
    paths = [route.path for route in routes if isinstance(route, Route)]

    async def missing(scope: Scope, receive: Receive, send: Send) -> None:
        raise not_found(scope["path"], paths)

    router = Router(routes, redirect_slashes=False, default=missing)

    async def configured(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] |= {"config": context.config, "bodies": context.bodies}
        with context.budget.body(), noting(context.config.unknown_fields == "refuse") as ignored:
            scope["state"]["ignored"] = ignored
            try:
                await router(scope, receive, send)
            except HTTPException as error:
                if error.status_code == 405:
                    error.headers = {"allow": _allowed(routes, scope)}
                raise

    guarded = Guard(context.config, context.keyring, OverloadLayer(configured, context.pipeline.overload))
    anthropic = dict.fromkeys(("/v1/messages", "/messages"), messages_answer.error_body)
    errors = ErrorLayer(guarded, {**anthropic, "/api": ollama_answer.error_body}, context.metrics)
    return ResponseMeter(AnswerHeaders(context.config, errors), routes, context.metrics)
