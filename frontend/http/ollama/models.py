"""Ollama's routes about models: what is served here. What would change that is refused."""

import hashlib
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_response
from quire.frontend.http.body import read
from quire.frontend.http.ollama.answer import Json, served_name, tagged, time_text
from quire.proto.api import RequestError, ServerInfo
from quire.proto.messages.params import ParameterError

API_VERSION = "0.33.0"
"""The version of Ollama whose API this is: clients ask for it to know what they may send."""
NEVER = "9999-12-31T23:59:59Z"
"""When a served model is unloaded."""
CHANGES = ("/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete")


class ShowBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str = ""
    name: str = ""
    """An older name of `model`."""
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: msgspec.Raw = msgspec.Raw()


def routes(context: FrontendContext) -> list[Route]:
    started = time_text(time.time())

    async def version(request: Request) -> Response:
        return json_response({"version": API_VERSION, "quire": context.engine_info.version})

    async def tags(request: Request) -> Response:
        info = context.engine_info.model_info()
        return json_response({"models": [_listed(info, name, started) for name in info.model_names]})

    async def running(request: Request) -> Response:
        info = context.engine_info.model_info()
        more = {"expires_at": NEVER, "context_length": info.max_model_len}
        more["size_vram"] = 0 if info.device == "cpu" else info.weight_bytes + info.kv_bytes
        return json_response({"models": [_listed(info, name, started) | more for name in info.model_names]})

    async def show(request: Request) -> Response:
        body = await read(request, ShowBody)
        if not (body.model or body.name):
            raise ParameterError("model", "is missing")
        served_name(context, body.model or body.name)
        info = context.engine_info.model_info()
        return json_response(_shown(info, context.engine_info.chat_template, started))

    async def refuse(request: Request) -> Response:
        message = f"{request.url.path} is not offered: this server serves the models it was started with"
        raise RequestError("UNSUPPORTED", f"{message}, which /api/tags lists; leave the call out")

    changes = [Route(path, refuse, methods=["POST", "DELETE"]) for path in CHANGES]
    return [
        Route("/api/version", version, methods=["GET"]),
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/ps", running, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        *changes,
        Route("/api/blobs/{digest}", refuse, methods=["GET", "POST"]),
    ]


def _listed(info: ServerInfo, name: str, started: str) -> Json:
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": started,
        "size": info.weight_bytes,
        "digest": hashlib.sha256(f"{name}|{info.revision}|{info.dtype}".encode()).hexdigest(),
        "details": _details(info),
    }


def _details(info: ServerInfo) -> Json:
    family, (method, _, _) = _family(info), info.quantization.partition(" ")
    return {
        "parent_model": "",
        "format": method if method == "gguf" else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": info.dtype if method == "none" else info.quantization,
    }


def _family(info: ServerInfo) -> str:
    """`llama` for LlamaForCausalLM."""
    return (
        info.architecture.removesuffix("ForCausalLM")
        .removesuffix("ForSequenceClassification")
        .removesuffix("Model")
        .lower()
    )


def _shown(info: ServerInfo, template: str, started: str) -> Json:
    family = _family(info)
    facts: Json = {"general.architecture": family, f"{family}.context_length": info.max_model_len}
    if info.task == "embed":
        capabilities = ["embedding"]
        facts[f"{family}.embedding_length"] = info.embedding_size
    elif info.task != "generate":
        capabilities = []
    else:
        spoken = {"tools": info.tool_parser, "thinking": info.reasoning_parser, "vision": "image" in info.modalities}
        capabilities = ["completion", *(name for name, parser in spoken.items() if parser)]
    defaults = {
        "temperature": info.default_temperature,
        "top_p": info.default_top_p,
        "top_k": info.default_top_k,
        "min_p": info.default_min_p,
        "repeat_penalty": info.default_repetition_penalty,
    }
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name} {value:g}" for name, value in defaults.items()),
        "template": template,
        "details": _details(info),
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": started,
    }
