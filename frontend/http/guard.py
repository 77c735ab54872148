"""The admission of HTTP requests: host, origin and key are checked before routing, on the path the router will see.

Nothing is opened by a list of routes: every path needs a key, known or not, except those that only report health. The
origin rules are those of the Fetch standard (CORS); browsers get no cookies, and no foreign page may act for one.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.frontend.config import FrontendConfig
from quire.frontend.http.errors import HttpError
from quire.frontend.security.keys import Keyring, Need, bearer, tenant_of

EXEMPT = frozenset({"/health", "/v1/health", "/ping", "/live", "/ready"})
METRICS = "/metrics"
ADMIN = ("/v1/requests", "/v1/status", "/v1/prefixes", "/slots")
"""These paths, and whatever lies below them, reach everybody's requests."""

PREFLIGHT_SECONDS = 600
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?")

Headers = list[tuple[bytes, bytes]]

_EVERYWHERE: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
"""Headers of every answer that does not set them itself."""


class Guard:
    """An ASGI layer. Raises `HttpError` and `RequestError` for the error layer around it."""

    def __init__(self, config: FrontendConfig, keyring: Keyring, app: ASGIApp) -> None:
        self._app = app
        self._keyring = keyring
        self._known_host = _known_host(config)
        self._origins = Origins(config)
        self._keyless = {METRICS} if config.metrics_without_key else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        need = _need(scope["path"])
        if need != "nothing":  # a probe names the address of a pod
            self._check_host(headers)
        origin = self._origins.foreign(headers)
        if origin is not None and not self._origins.allow(origin):
            raise HttpError(403, "permission_denied", "pages of this origin may not call; see --allowed-origins")
        if origin is not None and scope["method"] == "OPTIONS" and _all(headers, b"access-control-request-method"):
            await _answer_preflight(headers, send)
            return
        key = _key(headers, own_page=origin is None)
        refusal = self._keyring.refusal("nothing" if scope["path"] in self._keyless else need, key)
        if refusal is not None:
            raise refusal
        scope["state"]["tenant"] = tenant_of(key)
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        given = _all(headers, b"host")
        if len(given) > 1:
            raise HttpError(400, "invalid_parameter", "the Host header must be there once")
        match = HOST.fullmatch(given[0].decode("latin-1").lower()) if given else None
        if not self._known_host(match[1].rstrip(".") if match else ""):
            raise HttpError(421, "misdirected_request", "this server does not go by that Host; see --allowed-hosts")


class Origins:
    """The origins whose pages a browser may let call, and the headers that allow it."""

    def __init__(self, config: FrontendConfig) -> None:
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in config.allowed_origins)

    def foreign(self, headers: Headers) -> str | None:
        """The Origin of a page that is not this server's own; None for own pages and for callers without a page."""
        given = _all(headers, b"origin")
        if not given:
            return None
        origin = b",".join(given).decode("latin-1").lower()
        if _all(headers, b"sec-fetch-site") == [b"same-origin"]:  # only a browser itself can say this
            return None
        same_host = [origin.partition("://")[2].encode("latin-1")] == [host.lower() for host in _all(headers, b"host")]
        return None if same_host else origin

    def allow(self, origin: str) -> bool:
        return "*" in self._allowed or origin in self._allowed

    def headers(self, request: Headers) -> Headers:
        """The headers of every answer, so that a page may also read why it was refused."""
        if not self._allowed:
            return []
        origin = self.foreign(request)
        if origin is None or not self.allow(origin):
            return [(b"vary", b"origin")]
        return [
            (b"vary", b"origin"),
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, x-quire-ignored, retry-after, x-should-retry"),
        ]


class AnswerHeaders:
    """The outermost ASGI layer: headers that every answer has, errors too."""

    def __init__(self, config: FrontendConfig, app: ASGIApp) -> None:
        self._app = app
        self._origins = Origins(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                given += [(name, value) for name, value in _EVERYWHERE if name not in names]
                given += self._origins.headers(scope["headers"])
                if message["status"] == 401:  # on a line of its own: lets a browser ask for the key as a password
                    given.append((b"www-authenticate", b'Basic realm="quire", charset="UTF-8"'))
                message["headers"] = given
            await send(message)

        if scope["type"] == "http":
            await self._app(scope, receive, with_headers)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})


def _need(path: str) -> Need:
    if path in EXEMPT:
        return "nothing"
    return "admin" if any(path == admin or path.startswith(f"{admin}/") for admin in ADMIN) else "key"


def _known_host(config: FrontendConfig) -> Callable[[str], bool]:
    """The check of the Host header's name; "" stands for none, or an unreadable one."""
    if config.allowed_hosts:
        names = {name.lower().rstrip(".") for name in config.allowed_hosts}
        return lambda host: "*" in names or host in names
    if _is_loopback(config.host):  # a page elsewhere may have its own name resolve to this machine
        return _is_loopback
    return lambda host: True


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _key(headers: Headers, own_page: bool) -> str | None:
    """The key a caller shows: `Authorization: Bearer`, `x-api-key`, or Basic with any user and the key as password.

    Basic is what a browser adds by itself, so it counts only for this server's own pages.
    """
    given = _all(headers, b"authorization")
    if not given:
        plain = _all(headers, b"x-api-key")
        return plain[0].decode("latin-1") if len(plain) == 1 else None
    if len(given) > 1:
        return None
    text = given[0].decode("latin-1")
    scheme, _, credentials = text.partition(" ")
    if scheme.lower() != "basic":
        return bearer(text)
    try:
        password = base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return None
    return password.decode("latin-1") if own_page else None


async def _answer_preflight(headers: Headers, send: Send) -> None:
    """Without a key: a browser sends none with this question. The origin has already been allowed."""
    requested = b", ".join(_all(headers, b"access-control-request-headers"))
    answer = [
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", requested or b"authorization, content-type"),
        (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode()),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})


def _all(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]
