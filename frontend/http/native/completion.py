"""POST /completion in llama-server's shape: a prompt and what comes behind it, for clients that speak nothing else."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.body import beside, read
from quire.frontend.http.call import request_id
from quire.frontend.http.native.llama_answer import answered
from quire.frontend.http.native.llama_fields import LlamaFields
from quire.frontend.http.openai.completion_types import as_prompts
from quire.proto.api import GenerateRequest
from quire.proto.messages.params import ParameterError
from quire.proto.token_column import token_column

MOST_TOKENS = (1 << 31) - 1
"""Tokens of a negative `n_predict`, which are then cut to the room there is."""


class CompletionBody(LlamaFields, kw_only=True, forbid_unknown_fields=True):
    prompt: str | list[str | int | list[int]]
    """A text, whose special tokens are parsed unless `parse_special` is false, or token ids."""

    def request(self, label: str) -> GenerateRequest:
        """Raises `ParameterError`."""
        prompts = as_prompts(self.prompt)
        if prompts is None:
            raise ParameterError("prompt", "must be a text or token ids; to mix them, send ids that /tokenize gives")
        if len(prompts) > 1:
            message = f"holds {len(prompts)} prompts; send one request for each, they run in one batch"
            raise ParameterError("prompt", message)
        (prompt,) = prompts
        if not isinstance(prompt, str):
            return self.asked(token_column(prompt), label, None, MOST_TOKENS)
        return self.asked(prompt, label, None, MOST_TOKENS, parse_special=self.parse_special is not False)


def routes(context: FrontendContext) -> list[Route]:
    async def complete(request: Request) -> Response:
        payload = await read(request, CompletionBody)
        generate = await beside(request, lambda: payload.request(request_id(request)))
        return await answered(context, payload, generate, payload.names(), request)

    return [Route("/completion", complete, methods=["POST"])]
