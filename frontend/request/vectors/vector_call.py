"""Calls of many inputs: every input is a request of its own, and one answer gathers their vectors.

A call fails as a whole, naming the input at fault, and leaves nothing running: a failure or a cancelled call aborts
what is still open.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from quire.frontend.call import Call
from quire.frontend.config import FrontendConfig
from quire.frontend.errors import empty_prompt
from quire.frontend.request import validate
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.token_range import is_within
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.telemetry.observer import Observer
from quire.frontend.text.encode_jobs import EncodeText
from quire.frontend.text.pair_template import Pair
from quire.proto.api import Chat, GenerateRequest, RequestError
from quire.proto.messages.heads import HeadFacts
from quire.proto.messages.message import Task
from quire.proto.messages.params import ParameterError, SamplingParams, check_token_ids
from quire.proto.messages.requests import ModelFacts

Vector = npt.NDArray[np.float32]

MAX_INPUTS = 2048
MAX_IN_FLIGHT = 256
"""Most inputs of one call that wait or run at once: a large call leaves room in the queue for others."""
PER_TURN = 4
"""Most inputs of one call that begin in one turn of the event loop: hundreds together would keep it from streams."""
INPUT = "input"
"""Field of errors that are about the input at hand, until its own name takes the place."""
VECTOR_PARAMS = SamplingParams(temperature=0.0, max_tokens=1)


class Gathered(NamedTuple):
    """The answer to one input."""

    vector: Vector
    """As the worker made it."""
    num_tokens: int


class Common(Protocol):
    """Fields that all requests for vectors have."""

    @property
    def request_id(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def truncate_prompt_tokens(self) -> int | None: ...
    @property
    def truncation_side(self) -> str | None: ...
    @property
    def priority(self) -> int | None: ...
    @property
    def timeout_seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class VectorCall:
    """The values that all inputs of a call share."""

    request: GenerateRequest
    """The request of each input, but for the input itself."""
    model: ServedModel
    name: str
    """The model's name in the answer."""
    call: Call
    facts: ModelFacts
    names: Sequence[str]
    """Names of the inputs' fields, for errors."""
    budget_seconds: float

    @property
    def label(self) -> str:
        return self.request.request_id or ""

    @property
    def keep(self) -> int | None:
        """Most tokens of a prompt that are kept; None: a longer one is refused."""
        stated = self.request.truncate_prompt_tokens
        return self.facts.max_model_len if stated == -1 else stated

    @property
    def keep_last(self) -> bool:
        """The end of what is cut stays, not its beginning."""
        side = self.request.truncation_side
        return side == "left" if side is not None else self.model.tokenizer.keeps_ends

    async def encode(
        self,
        source: str | Sequence[int],
        special: bool = True,
        most: int | None = None,
        field: str = INPUT,
        parse_special: bool = False,
    ) -> Sequence[int]:
        """The ids of an input, cut to what the call keeps, and to `most`. Raises `ParameterError` on `field` for one
        that can never fit the context. `parse_special`: special tokens spelled in it are parsed."""
        limits = [limit for limit in (self.keep, most) if limit is not None]
        keep = min(limits) if limits else None
        if not isinstance(source, str):
            return source[-keep:] if self.keep_last and keep is not None else source[:keep]
        ends = special and self.facts.task == "embed"
        job = EncodeText(special, parse_special, keep, self.keep_last, ends)
        context = self.facts.max_model_len if keep is None else None
        return await self.model.async_tokenizer.ids(job, source, field, context)


class Gatherer:
    """One per frontend."""

    def __init__(self, config: FrontendConfig, observer: Observer) -> None:
        self._config = config
        self._observer = observer

    def begin(
        self, model: ServedModel, request: Common, call: Call, names: Sequence[str], tasks: Sequence[Task]
    ) -> VectorCall:
        """Check what the inputs share; `tasks`: those whose models take them.

        Raises `ParameterError` or `RequestError`.
        """
        model.scheduler.check_accepts()
        limits, facts = validate.served(model.scheduler.welcome)
        name = model.called(request.model)
        validate.check_task(tasks, facts)
        common = GenerateRequest(
            request_id=uuid.uuid4().hex if request.request_id is None else request.request_id,
            model=name,
            truncate_prompt_tokens=request.truncate_prompt_tokens,
            truncation_side=request.truncation_side,
            priority=request.priority,
            timeout_seconds=request.timeout_seconds,
        )
        validate.check_labels(common, limits)
        seconds = validate.budget_seconds(request.timeout_seconds, call.deadline_seconds, self._config, limits)
        return VectorCall(common, model, name, call, facts, names, seconds)

    async def gather(self, shared: VectorCall, prompt: Callable[[int], Awaitable[Pair]]) -> list[Gathered]:
        """The raw vector and the number of tokens of each input, in order. `prompt` makes that of an input."""
        found: dict[int, Gathered] = {}
        todo = iter(range(len(shared.names)))
        turns = asyncio.Semaphore(PER_TURN)

        async def work() -> None:
            for index in todo:
                async with turns:
                    await asyncio.sleep(0)
                found[index] = await self._named(shared, prompt, index)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(len(shared.names), MAX_IN_FLIGHT)):
                    tasks.create_task(work())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [found[index] for index in range(len(shared.names))]

    async def _named(self, shared: VectorCall, prompt: Callable[[int], Awaitable[Pair]], index: int) -> Gathered:
        """The answer to one input, whose errors name it."""
        try:
            return await self._vector(shared, prompt, index)
        except ParameterError as error:
            if error.field not in (INPUT, "prompt_token_ids"):
                raise
            text = str(error).removeprefix(f"{error.field}: ")
            raise ParameterError(shared.names[index], text, error.reason) from None
        except RequestError as error:
            error.field = shared.names[index]
            raise

    async def _vector(self, shared: VectorCall, prompt: Callable[[int], Awaitable[Pair]], index: int) -> Gathered:
        request = shared.request
        with self._observer.request(request, shared.call) as observed:
            pair = await prompt(index)
            check_prompt(pair.token_ids, shared.facts)
            ids = _unpadded(pair.token_ids, shared.facts.head)
            prepared = PreparedRequest(
                request_id=shared.label,
                model=shared.name,
                prompt=ids,
                media=pair.media,
                params=VECTOR_PARAMS,
                n=1,
                priority=request.priority or 0,
                cache_salt="",
                adapter="",
                arrived=observed.arrived,
                deadline=observed.arrived + shared.budget_seconds,
                stop=(),
                include_stop=False,
                skip_special_tokens=True,
                return_prompt_token_ids=False,
                return_token_ids=False,
                task=shared.facts.task,
                second_text=pair.second_text if pair.second_text < len(ids) else 0,
            )
            scheduler = shared.model.scheduler
            # it takes the place of one that was answered: neither a drain nor a full queue breaks the call off
            stream = scheduler.open(prepared, shared.model.tokenizer, accepted=index >= MAX_IN_FLIGHT)
            observed.submitted(stream)
            try:
                while await stream.take():
                    pass
            finally:
                scheduler.close(stream)
        if not stream.vector:
            raise RequestError("CANCELLED", "the request was aborted", request_id=prepared.request_id)
        return Gathered(np.frombuffer(stream.vector, dtype="<f4"), len(pair.token_ids))


def check_prompt(ids: Sequence[int], facts: ModelFacts) -> None:
    """Raises `ParameterError` on `INPUT` for a prompt without tokens, with too many, or with what no token is."""
    if not ids:
        raise empty_prompt(INPUT)
    if len(ids) > facts.max_model_len:
        message = f"has {len(ids)} tokens, more than the context of {facts.max_model_len}; shorten it or set "
        raise ParameterError(INPUT, f"{message}truncate_prompt_tokens", "CONTEXT_LENGTH_EXCEEDED")
    check_token_ids(VECTOR_PARAMS, () if is_within(ids, facts.vocab_size) else ids, facts.vocab_size)


def _unpadded(ids: Sequence[int], head: HeadFacts | None) -> Sequence[int]:
    """The ids up to the one whose numbers the head's answer is: none looks at those behind it."""
    if head is None or head.padding != ids[-1]:
        return ids
    stop = len(ids)
    while stop and ids[stop - 1] == head.padding:
        stop -= 1
    return ids[: max(1, stop)]


def check_count(field: str, count: int, most: int = MAX_INPUTS) -> None:
    """Raises `ParameterError` for no inputs, and for more than one call may have."""
    if not 1 <= count <= most:
        remedy = "; send them in several requests" if count else ""
        reason = "INVALID_PARAMETER" if count else "EMPTY_PROMPT"
        raise ParameterError(field, f"must hold 1 to {most} entries, got {count}{remedy}", reason)


def check_inputs(
    inputs: Sequence[str | Sequence[int] | Chat], add_special_tokens: bool | None, names: Sequence[str]
) -> Sequence[str]:
    """The fields of the inputs: `names`, or those that gRPC has. Raises `ParameterError`."""
    check_count(names[0].partition("[")[0] if names else "inputs", len(inputs))
    if add_special_tokens is not None and not all(isinstance(one, str | Chat) for one in inputs):
        raise ParameterError("add_special_tokens", "applies to texts and chats only; leave it unset")
    return names or [f"inputs[{index}]" for index in range(len(inputs))]
