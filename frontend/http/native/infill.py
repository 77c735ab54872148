"""POST /infill in llama-server's shape: editors ask it for what stands between two texts."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import request_id
from quire.frontend.http.native.llama_answer import answered
from quire.frontend.http.native.llama_fields import LlamaFields
from quire.proto.api import GenerateRequest

MAX_TOKENS = 256
"""Tokens of an answer for which nobody gives a number: llama-server draws until the context is full."""
NAMES = {"prompt": "input_prefix", "suffix": "input_suffix"}


class Extra(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A piece of another file."""

    filename: str = ""
    text: str


class InfillBody(LlamaFields, kw_only=True, forbid_unknown_fields=True):
    """The prefix is the texts of `input_extra`, `input_prefix` and `prompt`, in this order."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] | None = None
    prompt: str | None = None

    def request(self, label: str, most: int) -> GenerateRequest:
        """`most`: tokens of an answer for which no number is given. Raises `ParameterError`."""
        extra = "".join([f"{one.filename}\n{one.text}\n" for one in self.input_extra or ()])
        prefix = extra + self.input_prefix + (self.prompt or "")
        return self.asked(prefix, label, most, most, suffix=self.input_suffix)


def routes(context: FrontendContext) -> list[Route]:
    most = context.config.override_generation_config.max_new_tokens or MAX_TOKENS

    async def infill(request: Request) -> Response:
        payload = await read(request, InfillBody)
        generate = await beside(request, lambda: payload.request(request_id(request), most))
        return await answered(context, payload, generate, NAMES | payload.names(), request)

    return [Route("/infill", infill, methods=["POST"])]
