"""The ASGI layer that counts answers, by route, method and status; what is not in the table of routes is `other`."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.frontend.metrics.metrics import Metrics

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
OTHER = "other"
NO_ANSWER = "499"
"""The client left before a status was sent."""


class ResponseMeter:
    """Outermost: what another layer refuses counts too."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        listed = [route for route in routes if isinstance(route, Route)]
        self._paths = {route.path for route in listed if "{" not in route.path}
        self._patterns = [(route.path_regex, route.path) for route in listed if "{" in route.path]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        code = NO_ANSWER

        async def seen(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = str(message["status"])
            await send(message)

        # before the router: it may change the scope
        route = self._route(scope["path"])
        method = scope["method"] if scope["method"] in METHODS else OTHER
        try:
            await self._app(scope, receive, seen)
        finally:
            labels = (("route", route), ("method", method), ("code", code))
            self._metrics.count("http_responses_total", labels)

    def _route(self, path: str) -> str:
        if path in self._paths:
            return path
        return next((name for pattern, name in self._patterns if pattern.match(path)), OTHER)
