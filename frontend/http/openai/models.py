"""GET /v1/models and /v1/models/{id}: the served names, then the adapters."""

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.http.answer import json_response
from quire.frontend.http.door import HttpDoor
from quire.frontend.request.validate import SHOWN_NAME
from quire.proto import api
from quire.proto.api import RequestError


class ModelCard(msgspec.Struct, kw_only=True):
    """OpenAI's model object, with vLLM's `root`, `parent` and `max_model_len`, and the width of the vocabulary.

    Figures are null until a worker has told them.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "quire"
    root: str
    parent: str | None
    max_model_len: int | None
    vocab_size: int | None


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


def routes(door: HttpDoor) -> list[Route]:
    created = int(time.time())

    def card(model: api.Model) -> ModelCard:
        return ModelCard(
            id=model.name,
            created=created,
            root=model.base or model.name,
            parent=model.base or None,
            max_model_len=model.max_model_len or None,
            vocab_size=door.control.server_info().vocab_size or None,
        )

    async def listing(request: Request) -> Response:
        return json_response(ModelList([card(model) for model in door.control.models()]))

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        for model in door.control.models():
            if model.name == name:
                return json_response(card(model))
        raise RequestError("UNKNOWN_MODEL", f"model {name[:SHOWN_NAME]!r} is not served here", field="model")

    return [
        Route("/v1/models", listing, methods=["GET"]),
        Route("/v1/models/{name:path}", one, methods=["GET"]),
    ]
