"""GET /v1/models and /v1/models/{id} as Anthropic's clients read them: those are known by their header."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from quire.frontend.context import FrontendContext
from quire.frontend.errors import unknown_model
from quire.frontend.http.answer import json_response
from quire.frontend.http.anthropic.messages import in_anthropic_shape
from quire.proto import api
from quire.proto.messages.params import ParameterError

VERSION = b"anthropic-version"
DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


class ModelCard(msgspec.Struct, kw_only=True):
    """Anthropic's model object."""

    type: str = "model"
    id: str
    display_name: str
    created_at: str
    """Start of this server, RFC 3339."""
    lifecycle: str = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(msgspec.Struct):
    data: Sequence[ModelCard]
    has_more: bool
    first_id: str | None
    last_id: str | None


class OfAnthropicsClients(Route):
    """A route for requests that name the version of Anthropic's API; all others go on to the next route."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or all(name != VERSION for name, _ in scope["headers"]):
            return Match.NONE, {}
        return super().matches(scope)


def routes(context: FrontendContext) -> list[Route]:
    created = datetime.now(UTC).isoformat(timespec="seconds")

    def cards() -> list[ModelCard]:
        return [_card(model, created) for model in context.engine_info.models()]

    async def listing(request: Request) -> Response:
        return json_response(_page(cards(), request))

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        for card in cards():
            if card.id == name:
                return json_response(card)
        raise unknown_model(name, [card.id for card in cards()])

    return [
        OfAnthropicsClients("/v1/models", in_anthropic_shape(listing), methods=["GET"]),
        OfAnthropicsClients("/v1/models/{name:path}", in_anthropic_shape(one), methods=["GET"]),
    ]


def _card(model: api.Model, created: str) -> ModelCard:
    longest = model.max_model_len
    return ModelCard(
        id=model.name, display_name=model.name, created_at=created, max_input_tokens=longest, max_tokens=longest
    )


def _page(cards: list[ModelCard], request: Request) -> ModelPage:
    """The part of the list that `limit`, `after_id` and `before_id` ask for. Raises `ParameterError`."""
    query = request.query_params
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 5 and 1 <= int(limit) <= MAX_LIMIT):
        raise ParameterError("limit", f"must be an integer in [1, {MAX_LIMIT}], got {limit[:32]!r}")
    ids = [card.id for card in cards]
    begin, end = 0, len(cards)
    for field in ("after_id", "before_id"):
        if (id := query.get(field)) is None:
            continue
        if id not in ids:
            raise ParameterError(field, f"{id[:128]!r} is not in the list")
        begin, end = (ids.index(id) + 1, end) if field == "after_id" else (begin, ids.index(id))
    backwards = "before_id" in query and "after_id" not in query
    shown = cards[begin:end]
    kept = shown[-int(limit) :] if backwards else shown[: int(limit)]
    return ModelPage(kept, len(kept) < len(shown), kept[0].id if kept else None, kept[-1].id if kept else None)
