"""Numbers of labels: what a model's head says of each input, or of each of its tokens."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Final

from quire.frontend.call import Call
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.validate import DOES_BY_TOKEN
from quire.frontend.request.vectors.activation import activated
from quire.frontend.request.vectors.input_prompts import prompts
from quire.frontend.request.vectors.vector_call import INPUT, Gatherer, Vector, check_inputs
from quire.frontend.text.pair_template import Pair
from quire.proto.api import Classifications, ClassifyRequest, RequestError
from quire.proto.messages.heads import Activation
from quire.proto.messages.message import Task
from quire.proto.messages.params import ParameterError

TASKS: tuple[Task, ...] = ("classify", "score", "reward")
MOST_NUMBERS: Final = 1 << 23
"""Most numbers of the tokens of one call."""


async def classify(
    gatherer: Gatherer,
    tokenizer: PromptTokenizer,
    model: ServedModel,
    request: ClassifyRequest,
    call: Call,
    names: Sequence[str] = (),
    *,
    of_tokens: bool = True,
) -> Classifications:
    """Numbers of the inputs' labels, or of their tokens'. `names`: the inputs' fields for errors. `of_tokens`: where
    not, an answer has no place for those of tokens.

    Raises `ParameterError` or `RequestError`.
    """
    names = check_inputs(request.inputs, request.add_special_tokens, names)
    shared = gatherer.begin(model, request, call, names, TASKS)
    if shared.facts.by_token and not of_tokens:
        message = f"{shared.facts.architecture} {DOES_BY_TOKEN}"
        raise RequestError("UNSUPPORTED", message, field="model")
    head = shared.facts.head
    assert head is not None
    kind = "none" if request.use_activation is False else head.activation
    with ExitStack() as files:
        prompt = prompts(tokenizer, shared, request.inputs, request.add_special_tokens, files)
        if head.by_token:
            prompt = _bounded(prompt, len(head.labels))
        found = await gatherer.gather(shared, prompt)
    num_tokens = sum(one.num_tokens for one in found)
    if head.by_token:
        # millions of numbers take a while, in which the loop must beat
        tokens = await asyncio.to_thread(lambda: [_of_tokens(one.vector, len(head.labels), kind) for one in found])
        return Classifications(shared.label, shared.name, head.labels, (), num_tokens, tokens)
    numbers = [activated(one.vector, kind).tolist() for one in found]
    return Classifications(shared.label, shared.name, head.labels, numbers, num_tokens)


def _of_tokens(raw: Vector, num_labels: int, kind: Activation) -> Sequence[float]:
    """The numbers of an input's tokens, one token behind the other: [tokens * labels]."""
    return array("f", activated(raw.reshape(-1, num_labels), kind).astype("f").tobytes())


def _bounded(prompt: Callable[[int], Awaitable[Pair]], num_labels: int) -> Callable[[int], Awaitable[Pair]]:
    """The same prompts, as long as their tokens have no more numbers together than an answer may."""
    left = MOST_NUMBERS

    async def bounded(index: int) -> Pair:
        nonlocal left
        pair = await prompt(index)
        left -= len(pair.token_ids) * num_labels
        if left < 0:
            message = f"has {num_labels} numbers for each of its tokens, and with the others' more than {MOST_NUMBERS}"
            raise ParameterError(INPUT, f"{message}; send fewer or shorter inputs in a call")
        return pair

    return bounded
