"""POST /classify in vLLM's shape; also under /v1."""

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.frontend.context import FrontendContext
from quire.frontend.http.answer import json_answer, json_list, numbers_size
from quire.frontend.http.body import read
from quire.frontend.http.call import call_of
from quire.frontend.http.fields.conversation import renamed
from quire.frontend.http.openai.input_body import InputBody
from quire.frontend.http.score.types import Usage
from quire.frontend.request.vectors.classes import TASKS
from quire.proto.api import Classifications, ClassifyRequest

CLASSIFY = ("/classify", "/v1/classify")


class ClassifyBody(InputBody, kw_only=True, forbid_unknown_fields=True):
    """`input` or `messages`."""

    use_activation: bool | None = None
    activation: bool | None = None
    softmax: bool | None = None

    @property
    def activates(self) -> bool | None:
        """Numbers go through the model's activation; None: as its files say."""
        given = (one for one in (self.use_activation, self.activation, self.softmax) if one is not None)
        return next(given, None)


class ClassItem(msgspec.Struct):
    """Numbers of the labels, and the name of the greatest one's."""

    index: int
    label: str
    probs: msgspec.Raw
    num_classes: int


class ClassList(msgspec.Struct):
    id: str
    data: list[ClassItem]
    model: str
    usage: Usage
    created: int
    object: str = "list"


def routes(context: FrontendContext) -> list[Route]:
    async def classify(request: Request) -> Response:
        body = await read(request, ClassifyBody)
        fields, names = await body.asked(context, request, TASKS)
        asked = ClassifyRequest(use_activation=body.activates, **fields)
        with renamed(body.renames()):
            found = await context.pipeline.classify(asked, call_of(request), names, of_tokens=False)
        return await json_answer(context, numbers_size(found.probs), lambda: _answer(found))

    return [Route(path, classify, methods=["POST"]) for path in CLASSIFY]


def _answer(found: Classifications) -> ClassList:
    data = [
        ClassItem(index, label, json_list(probs), len(found.labels))
        for index, (label, probs) in enumerate(zip(found.best, found.probs, strict=True))
    ]
    usage = Usage(found.prompt_tokens, found.prompt_tokens)
    return ClassList(found.request_id, data, found.model, usage, int(time.time()))
