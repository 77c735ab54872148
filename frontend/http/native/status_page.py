"""The status page at `/`, and that of routes at `/docs`: files of this package, no build step, nothing from elsewhere.

A browser may open it with HTTP Basic and the admin key as the password; see `guard`.
"""

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/plain; charset=utf-8",
}
INDEX = "index.html"
TEXTS = ("API.md", "METRICS.md")
"""Documents that are served as they are written."""
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def routes(context: FrontendContext) -> list[Route]:
    """One route for each file: no path of a request is ever joined to a directory."""
    package = resources.files("quire.frontend")
    folder = package / "http" / "page"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}
    made = [Route(f"/page/{name}", _serve(name, content), methods=["GET"]) for name, content in sorted(files.items())]
    pages = [
        Route(path, _serve(name, files[name]), methods=["GET"]) for path, name in (("/", INDEX), ("/docs", "docs.html"))
    ]
    texts = [
        Route(f"/docs/{name.lower()}", _serve(name, (package / name).read_bytes()), methods=["GET"]) for name in TEXTS
    ]
    return [*pages, *made, *texts]


def _serve(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": tag}
    kind = _TYPES[name.rpartition(".")[2]]

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)

    return serve
