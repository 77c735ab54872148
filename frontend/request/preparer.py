"""The way of a request to its submission: check its fields, tokenize its prompt, resolve its parameters."""

import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec

from quire.frontend.call import Call
from quire.frontend.chat.checks import check_chat
from quire.frontend.config import FrontendConfig
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.parsing.formats import AnswerFormat, with_forced_calls, with_reasoning_first
from quire.frontend.request import validate
from quire.frontend.request.deadline import in_time
from quire.frontend.request.prompt_images import ImageOwner
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.served_model import ServedModel
from quire.frontend.stream.prepared_request import PreparedRequest
from quire.frontend.text.encode_threads import EncodeThreads
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.media import Media
from quire.proto.messages.params import SamplingParams
from quire.proto.messages.requests import ModelFacts


@dataclass(frozen=True, slots=True)
class _Checked:
    """A request whose fields passed the checks that need no tokens."""

    request: GenerateRequest
    """The request with the grammar of forced tool calls."""
    model: ServedModel
    fields: validate.CheckedFields
    facts: ModelFacts
    seed: int
    """Seed for a request that has none."""
    deadline: float
    """Monotonic time."""
    max_tokens_is_bound: bool
    """See `Call.max_tokens_is_bound`."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A tokenized prompt."""

    ids: Sequence[int]
    media: tuple[Media, ...]
    bad_words: tuple[tuple[int, ...], ...]
    answer_format: AnswerFormat | None


class RequestPreparer:
    """One per frontend. Errors name the field at fault as `quire.proto` does."""

    def __init__(
        self,
        config: FrontendConfig,
        prompt_tokenizer: PromptTokenizer,
        threads: EncodeThreads,
        draw_seed: Callable[[int], int],
        metrics: Metrics,
    ) -> None:
        """`draw_seed` makes a seed of so many bits."""
        self._config = config
        self._prompt_tokenizer = prompt_tokenizer
        self._threads = threads
        self._draw_seed = draw_seed
        self._metrics = metrics

    async def prepare(
        self, model: ServedModel, request: GenerateRequest, call: Call, arrived: float, files: ExitStack
    ) -> PreparedRequest:
        """The request as the scheduler takes it; the files of its images stay until `files` is closed.

        Raises `ParameterError` or `RequestError`.
        """
        checked = await self._check(model, request, call, arrived)
        owner = ImageOwner(call.tenant, request.cache_salt or "", checked.deadline, files, checked.facts.max_model_len)
        prompt = await self._tokenize(checked, owner)
        params = await self._parameters(checked, prompt, call)
        return _prepared(checked, prompt, params, arrived)

    async def _check(self, model: ServedModel, request: GenerateRequest, call: Call, arrived: float) -> _Checked:
        model.scheduler.check_accepts()
        limits, facts = validate.served(model.scheduler.welcome)
        fields = validate.before_tokenizing(request, call, self._config, limits, facts)
        seed = self._draw_seed(63)
        if isinstance(chat := request.input, Chat):
            await self._threads.run_single(chat.cost, check_chat, chat)
            request = await self._threads.run_single(chat.cost, with_forced_calls, request, chat, model.formats)
        # values stand in for those that need the prompt: a bad field must not cost a tokenization
        validate.sampling_params(request, model.defaults, seed, max(1, facts.max_model_len), ())
        deadline = arrived + fields.budget_seconds
        return _Checked(request, model, fields, facts, seed, deadline, call.max_tokens_is_bound)

    async def _tokenize(self, checked: _Checked, owner: ImageOwner) -> _Prompt:
        request, model = checked.request, checked.model
        bad_words = await in_time(checked.deadline, model.async_tokenizer.bad_words(request.bad_words))
        tokenizing = self._prompt_tokenizer.prompt(model, request, checked.facts, owner)
        prompt = await in_time(checked.deadline, tokenizing)
        answer_format = None
        if isinstance(request.input, Chat):
            answer_format = model.formats.for_chat(request.input, prompt.end, request.include_reasoning is not False)
            model.check_thinking(request, request.input, answer_format)
        return _Prompt(prompt.ids, prompt.media, bad_words, answer_format)

    async def _parameters(self, checked: _Checked, prompt: _Prompt, call: Call) -> SamplingParams:
        request = checked.request
        if isinstance(request.input, Chat):
            request = with_reasoning_first(request, prompt.answer_format)
        if checked.max_tokens_is_bound:
            request = validate.within_room(request, checked.model.defaults, len(prompt.ids), checked.facts)
        is_filled = request.suffix is not None and isinstance(request.input, str)
        if is_filled and (infill := checked.model.infill) is not None:
            request = replace(request, stop_token_ids=(*request.stop_token_ids, *infill.ends))
        params = validate.after_tokenizing(
            request, checked.model.defaults, checked.seed, prompt.ids, prompt.bad_words, checked.facts
        )
        if params.structured is not None:
            field = checked.fields.grammar_field
            with self._metrics.compiling():
                checking = checked.model.grammars.check(params.structured, checked.facts, field)
                for name in await in_time(checked.deadline, checking):
                    call.note(name)
        if checked.fields.num_best and params.logprobs < 0:
            params = msgspec.structs.replace(params, logprobs=0)
        return params


def _prepared(checked: _Checked, prompt: _Prompt, params: SamplingParams, arrived: float) -> PreparedRequest:
    request, fields = checked.request, checked.fields
    return PreparedRequest(
        request_id=request.request_id or uuid.uuid4().hex,
        model=checked.model.called(request.model),
        prompt=prompt.ids,
        media=prompt.media,
        params=params,
        n=fields.num_drawn,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        adapter=fields.adapter,
        arrived=arrived,
        deadline=checked.deadline,
        stop=tuple(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        return_prompt_token_ids=bool(request.return_prompt_token_ids),
        return_token_ids=request.return_token_ids is not False,
        answer_format=prompt.answer_format,
        num_best=fields.num_best,
        show_logprobs=request.logprobs is not None,
    )
