"""The OpenAPI 3.1 document (spec.openapis.org/oas/v3.1.1) of a list of routes."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from quire.frontend.http.guard import EXEMPT
from quire.frontend.http.openapi.schemas import Schemas
from quire.frontend.http.openapi.table import Words, words_of

Json = dict[str, Any]

PARAMETER = re.compile(r"\{([a-z_]+)(?::[a-z]+)?\}")
DESCRIPTION = (
    "Fields that a route does not know are dropped, and named in the header `x-quire-ignored`, unless their name is "
    "close to a known one or they would change the answer; `null` is not set. Errors of /v1/messages and /api have the "
    "shapes of Anthropic and Ollama."
)


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str
    request_id: str


class Error(msgspec.Struct):
    error: ErrorDetail


def document(routes: Iterable[BaseRoute], version: str) -> Json:
    """The document. Routes that only serve files of pages are left out."""
    listed: list[tuple[str, str, Words]] = []
    for route in routes:
        if not isinstance(route, Route) or route.path.startswith("/page/"):
            continue
        path = PARAMETER.sub(r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            listed.append((method, path, words_of(method, path) or Words(f"{method} {path}")))
    schemas = Schemas()
    paths: dict[str, Json] = {}
    for method, path, words in listed:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, words, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "quire", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _operation(method: str, path: str, words: Words, schemas: Schemas) -> Json:
    content: Json = {"application/json": {"schema": {} if words.answer is None else schemas.of(words.answer)}}
    if words.stream:
        content[words.stream] = {"schema": {"type": "string"}}
    made: Json = {
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{method}{path}".lower()).strip("_"),
        "summary": words.summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": {"description": "An error", "content": {"application/json": {"schema": schemas.of(Error)}}},
        },
    }
    if names := PARAMETER.findall(path):
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if words.body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schemas.of(words.body)}}}
    if path in EXEMPT:
        made["security"] = []
    return made
