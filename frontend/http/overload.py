"""The ASGI layer that refuses what a full queue would refuse, before the body is read."""

from starlette.types import ASGIApp, Receive, Scope, Send

from quire.frontend.request.overload import Overload

PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"})


class OverloadLayer:
    """Stands behind the guard, inside the layer that answers exceptions."""

    def __init__(self, app: ASGIApp, overload: Overload) -> None:
        self._app = app
        self._overload = overload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `RequestError`."""
        if scope["method"] == "POST" and scope["path"] in PATHS:
            refusal = self._overload.refusal("http")
            if refusal is not None:
                raise refusal
        await self._app(scope, receive, send)
