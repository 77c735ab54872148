"""GET /v1/models and /v1/models/{id}: the served names, then the adapters."""

import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.errors import unknown_model
from quire.frontend.http.answer import json_response
from quire.proto import api


class ModelCard(msgspec.Struct, kw_only=True):
    """OpenAI's model object, with vLLM's `root`, `parent` and `max_model_len`, and what the workers found out."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "quire"
    root: str
    parent: str | None
    max_model_len: int
    vocab_size: int
    quantization: str
    kv_dtype: str | None
    """Type of the keys and values in the cache; null without one."""
    input_modalities: Sequence[str]
    """Kinds of content it takes: text, and perhaps image and video."""
    max_images: int
    """Most images of one prompt."""
    max_videos: int
    task: str
    """The work it does: generate, embed, classify, score or reward."""
    labels: Sequence[str]
    """Names of the labels that it gives numbers."""
    warnings: tuple[str, ...]
    """The points in which this model does less than its users may expect, such as calls that nobody parses."""


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


def routes(context: FrontendContext) -> list[Route]:
    created = int(time.time())

    def card(model: api.Model) -> ModelCard:
        info = context.engine_info.model_info()
        return ModelCard(
            id=model.name,
            created=created,
            root=model.base or model.name,
            parent=model.base or None,
            max_model_len=model.max_model_len,
            vocab_size=info.vocab_size,
            quantization=info.quantization,
            kv_dtype=info.kv_dtype or None,
            input_modalities=info.modalities,
            max_images=info.max_images,
            max_videos=info.max_videos,
            task=info.task,
            labels=info.labels,
            warnings=context.engine_info.warnings,
        )

    async def listing(request: Request) -> Response:
        return json_response(ModelList([card(model) for model in context.engine_info.models()]))

    async def one(request: Request) -> Response:
        name = request.path_params["name"]
        for model in context.engine_info.models():
            if model.name == name:
                return json_response(card(model))
        raise unknown_model(name, [model.name for model in context.engine_info.models()])

    return [
        Route("/v1/models", listing, methods=["GET"]),
        Route("/v1/models/{name:path}", one, methods=["GET"]),
    ]
