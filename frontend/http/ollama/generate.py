"""`POST /api/generate`, in Ollama's shape."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.errors import not_supported
from quire.frontend.http import body
from quire.frontend.http.answer import json_response
from quire.frontend.http.call import request_id
from quire.frontend.http.ollama.answer import served_name
from quire.frontend.http.ollama.chat import answered, with_images
from quire.frontend.http.ollama.fields import NAMES, Fields
from quire.frontend.http.ollama.generation import Answer, as_response
from quire.proto import api
from quire.proto.messages.params import ParameterError


class GenerateBody(Fields, kw_only=True, forbid_unknown_fields=True):
    names: ClassVar[Mapping[str, str]] = {r"chat\.messages\[\d+\]\.content_parts": "images", **NAMES}

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    """The prompt is the model's whole input, special tokens too: no template is put around it."""
    suffix: str | None = None
    """The text behind the gap that is filled in; for tokenizers with fill-in-the-middle tokens."""
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    """Files in base64, for a model with a chat template."""
    width: None = None
    height: None = None
    steps: None = None

    def input(self, takes_chats: bool, kwargs: str) -> str | api.Chat:
        """The prompt, or a chat with it. `kwargs`: variables of the template. Raises `ParameterError`."""
        if self.template:
            raise not_supported("template")
        if self.context:
            message = "is not kept between requests; send the conversation to /api/chat"
            raise ParameterError("context", message, "UNSUPPORTED")
        prompt = self.prompt or ""
        if self.raw or self.suffix or not takes_chats:
            if self.system:
                given = "raw" if self.raw else "suffix"
                why = f"excludes {given}" if self.raw or self.suffix else "needs a model with a chat template"
                raise ParameterError("system", f"{why}; write it into the prompt, or leave it out")
            if self.images:
                message = "need a chat template to stand in; leave out raw and suffix, or the images"
                raise ParameterError("images", message, "UNSUPPORTED")
            return prompt
        turns = [api.ChatMessage("system", self.system)] if self.system else []
        turns.append(api.ChatMessage("user", with_images(prompt, self.images, "images")))
        return api.Chat(turns, template_kwargs=kwargs)


def routes(context: FrontendContext) -> list[Route]:
    async def create(request: Request) -> Response:
        payload = await body.read(request, GenerateBody)
        if not (payload.prompt or payload.suffix):
            served_name(context, payload.model)
            return json_response(Answer(payload.model, as_response).done("unload" if payload.unloads else "load"))

        def read() -> api.GenerateRequest:
            takes_chats = context.engine_info.server_info().supports_chat
            text = payload.input(takes_chats, payload.template_kwargs(context))
            generate = payload.generate_request(context, text, request_id(request))
            return replace(generate, parse_special=payload.raw or None, suffix=payload.suffix or None)

        return await answered(context, payload, await body.beside(request, read), as_response, request)

    return [Route("/api/generate", create, methods=["POST"])]
