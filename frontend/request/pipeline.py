"""The one path of every request, whatever door it came through: validate, render, tokenize, submit; the way back is
`RequestStream` (detokenize, stop strings, events).
"""

import random
import secrets
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import msgspec

from quire.frontend.call import Call
from quire.frontend.chat.checks import check_chat
from quire.frontend.chat.template import ChatTemplate
from quire.frontend.config import FrontendConfig
from quire.frontend.limits.byte_budget import current_body
from quire.frontend.parsing.formats import Formats, with_forced_calls, with_reasoning_first
from quire.frontend.request import validate
from quire.frontend.request.deadline import in_time
from quire.frontend.request.defaults import Defaults
from quire.frontend.request.embeddings import Embedder
from quire.frontend.request.overload import Overload
from quire.frontend.sandbox.grammar import Grammars
from quire.frontend.stream.parsed_stream import Answer
from quire.frontend.stream.prepared_request import Prepared
from quire.frontend.stream.request_stream import RequestStream
from quire.frontend.stream.scheduler_client import SchedulerLink
from quire.frontend.telemetry.observer import Observer
from quire.frontend.text.encode_pool import TextPool
from quire.frontend.text.encoder import Encoder
from quire.frontend.text.encoding import EncodeTemplate, EncodeText
from quire.frontend.text.token_range import first_outside, is_within
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, Embeddings, EmbedRequest, GenerateRequest, RequestError, ScoreRequest, Scores, Tokens
from quire.proto.messages.params import ParameterError, check_token_ids
from quire.proto.messages.requests import Limits, ModelFacts

MAX_DETOKENIZE_IDS = 1 << 20
MAX_PREPARING = 4096
"""Requests that are rendered, tokenized or embedded at once: what they hold is not the scheduler's to bound."""
PROMPT_END = 64
"""So many characters show in which state a template leaves the model: longer than any mark."""


class Pipeline:
    """Stateless across requests, but for the sequence of seeds."""

    def __init__(
        self,
        config: FrontendConfig,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        defaults: Defaults,
        link: SchedulerLink,
        pool: TextPool,
        observer: Observer,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._template = template
        self.formats = Formats.of(
            config.tool_call_parser, config.reasoning_parser, template.text if template is not None else ""
        )
        self._defaults = defaults
        self._link = link
        self._pool = pool
        self._grammars = Grammars(config)
        self._encoder = Encoder(config, tokenizer, pool)
        self._embedder = Embedder(config, link, self._encoder, observer)
        self._observer = observer
        self._metrics = observer.metrics
        self.overload = Overload(observer.metrics)
        self._metrics.num_open = lambda: self.num_open
        repeatable = random.Random(f"{config.seed}/{config.index}")
        self._draw_seed: Callable[[int], int] = secrets.randbits if config.seed is None else repeatable.getrandbits
        self._num_preparing = 0
        self._num_finishing = 0
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    @property
    def is_draining(self) -> bool:
        return self._draining

    async def start(self) -> None:
        """Have the processes of the chat template ready. Raises `TemplateError`."""
        if self._template is not None:
            await self._template.start()

    async def close(self) -> None:
        """End the processes it started."""
        if self._template is not None:
            await self._template.close()
        await self._encoder.close()
        await self._grammars.close()

    @property
    def num_open(self) -> int:
        """Requests between arrival and their last event, and what is to be done after it."""
        return self._num_preparing + self._link.num_streams + self._num_finishing

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Something is still to be done for a request whose stream has ended: a drain waits for it."""
        self._num_finishing += 1
        try:
            yield
        finally:
            self._num_finishing -= 1

    @asynccontextmanager
    async def open(self, request: GenerateRequest, call: Call) -> AsyncIterator[RequestStream | Answer]:
        """Submit a request; leaving the block aborts what still runs.

        Raises `ParameterError` or `RequestError` before anything was submitted.
        """
        with self._observer.request(request, call) as observed:
            with self._preparing():
                prepared = await self._prepare(request, call, observed.arrived)
                stream = self._link.open(prepared)
                observed.submitted(stream)
            try:
                yield Answer.of(stream)
            finally:
                self._link.close(stream)
                if self._link.welcome is not None:
                    self.overload.ended(stream, self._link.welcome.limits)

    async def embed(self, request: EmbedRequest, call: Call, names: Sequence[str] = ()) -> Embeddings:
        """`names`: what the door calls the inputs, one for each. Raises `ParameterError` or `RequestError`."""
        with self._preparing():
            return await self._embedder.embed(request, call, names)

    async def score(
        self, request: ScoreRequest, call: Call, query: str = "query", documents: str = "documents"
    ) -> Scores:
        """The same for scores. Raises `ParameterError` or `RequestError`."""
        with self._preparing():
            return await self._embedder.score(request, call, query, documents)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Something is open that has no stream yet. Raises `RequestError` while draining, or when that is too much."""
        if self._draining:
            raise RequestError("DRAINING", "this server is draining", retry_after_seconds=1.0)
        if self._num_preparing >= MAX_PREPARING:
            message = f"{self._num_preparing} requests are being prepared here; at most {MAX_PREPARING} may"
            raise RequestError("QUEUE_FULL", message, retry_after_seconds=1.0)
        self._num_preparing += 1
        try:
            yield
        finally:
            self._num_preparing -= 1
            if (body := current_body()) is not None:
                body.prepared()

    async def tokenize(
        self, text: str | Chat | None, model: str | None, add_special_tokens: bool | None = None,
        parse_special: bool | None = None, with_texts: bool = False,
    ) -> Tokens:  # fmt: skip
        """Raises `ParameterError` or `RequestError`."""
        validate.check_model(model, self._config)
        if text is None:
            raise ParameterError("text", "set text or chat", "EMPTY_PROMPT")
        validate.check_for_text(text, add_special_tokens, parse_special)
        if isinstance(text, Chat):
            await self._pool.run_one(text.num_chars, check_chat, text)
            ids, _ = await self._render(text)
        else:
            job = EncodeText(add_special_tokens is not False, bool(parse_special))
            ids = await self._encoder.ids(job, text, "text")
        texts = self._encoder.texts(ids) if with_texts else ()
        facts = self._link.welcome.facts if self._link.welcome is not None else None
        return Tokens(ids, texts, facts.max_model_len if facts is not None else 0)

    async def detokenize(self, ids: Sequence[int], model: str | None, skip_special_tokens: bool | None) -> str:
        """Raises `ParameterError` or `RequestError`."""
        validate.check_model(model, self._config)
        if len(ids) > MAX_DETOKENIZE_IDS:
            raise ParameterError("token_ids", f"has {len(ids)} entries; at most {MAX_DETOKENIZE_IDS} are allowed")
        facts = self._link.welcome.facts if self._link.welcome is not None else None
        width = facts.vocab_size if facts is not None else 1 << 31
        if not is_within(ids, width) and (index := first_outside(ids, width)) is not None:
            message = f"token id {ids[index]} at index {index} is outside [0, {width})"
            raise ParameterError("token_ids", message, "TOKEN_OUT_OF_RANGE")
        return await self._encoder.text(ids, skip_special_tokens is not False, "token_ids")

    def token_bytes(self, token_id: int) -> bytes:
        """See `TextTokenizer.token_bytes`."""
        return self._tokenizer.token_bytes(token_id)

    async def _prepare(self, request: GenerateRequest, call: Call, arrived: float) -> Prepared:
        model = validate.check_model(request.model, self._config)
        self._link.check_accepts()
        limits, facts = self._facts()
        validate.check_task("generate", facts)
        validate.check_labels(request, limits)
        validate.check_stop(request.stop)
        n = 1 if request.n is None else request.n
        num_drawn = n if request.best_of is None else request.best_of
        if num_drawn > n and call.streams:
            raise ParameterError("best_of", "is for whole answers; leave it unset in a stream", "UNSUPPORTED")
        budget = validate.budget_seconds(request.timeout_seconds, call.deadline_seconds, self._config, limits)
        adapter = validate.check_adapter(request.adapter, facts)
        seed = self._draw_seed(63)
        chat = request.input if isinstance(request.input, Chat) else None
        constraint = "chat.tools" if request.structured is None else "structured"
        if chat is not None:
            await self._pool.run_one(chat.num_chars, check_chat, chat)
            request = await self._pool.run_one(chat.num_chars, with_forced_calls, request, chat)
        # once with a stand-in for what needs the prompt: a bad field must not cost a tokenisation
        validate.sampling_params(request, self._defaults, seed, max(1, facts.max_model_len), ())
        bad_words = await in_time(arrived + budget, self._encoder.bad_words(request.bad_words))
        prompt, prompt_end = await in_time(arrived + budget, self._tokens(request, facts))
        reading = None
        if chat is not None:
            reading = self.formats.reading(chat, prompt_end, request.include_reasoning is not False)
            request = with_reasoning_first(request, reading)
        room = validate.check_length(len(prompt), request.max_tokens, facts)
        max_tokens = validate.default_max_tokens(request, len(prompt), room, facts)
        params = validate.sampling_params(request, self._defaults, seed, max_tokens, bad_words)
        check_token_ids(params, () if is_within(prompt, facts.vocab_size) else prompt, facts.vocab_size)
        if params.structured is not None:
            with self._metrics.compiling():
                await in_time(arrived + budget, self._grammars.check(params.structured, facts, constraint))
        if num_drawn > n and params.logprobs < 0:
            params = msgspec.structs.replace(params, logprobs=0)
        return Prepared(
            request_id=request.request_id or uuid.uuid4().hex,
            model=model,
            prompt=prompt,
            params=params,
            n=num_drawn,
            priority=request.priority or 0,
            cache_salt=request.cache_salt or "",
            adapter=adapter,
            arrived=arrived,
            deadline=arrived + budget,
            stop=tuple(request.stop),
            include_stop=bool(request.include_stop_str_in_output),
            skip_special_tokens=request.skip_special_tokens is not False,
            return_prompt_token_ids=bool(request.return_prompt_token_ids),
            return_token_ids=request.return_token_ids is not False,
            reading=reading,
            num_best=n if num_drawn > n else 0,
            show_logprobs=request.logprobs is not None,
        )

    async def _tokens(self, request: GenerateRequest, facts: ModelFacts) -> tuple[Sequence[int], str]:
        """The prompt, and how a chat's text ends."""
        source, keep, end = request.input, request.truncate_prompt_tokens, ""
        context = facts.max_model_len if keep is None else None
        if source is None:
            raise ParameterError("input", "is empty; set one of prompt, prompt_token_ids and chat", "EMPTY_PROMPT")
        ids: Sequence[int]
        if isinstance(source, Chat):
            field = "chat"
            ids, end = await self._render(source, context)
        elif isinstance(source, str):
            field = "prompt"
            with self._metrics.timed("tokenize_seconds"):
                special, parse = request.add_special_tokens is not False, bool(request.parse_special)
                ids = await self._encoder.ids(EncodeText(special, parse), source, field, context)
        else:
            field, ids = "prompt_token_ids", source
        if not ids:
            raise ParameterError(field, "is empty; at least one token is needed", "EMPTY_PROMPT")
        return (ids if keep is None else ids[-keep:]), end

    async def _render(self, chat: Chat, context: int | None = None) -> tuple[Sequence[int], str]:
        """Tokens of a checked chat, and how its text ends. `context`: see `Encoder.ids`."""
        if self._template is None:
            raise ParameterError("chat", "this model has no chat template; use prompt", "UNSUPPORTED")
        job = await self._pool.run_one(chat.num_chars, self._template.job, chat)
        with self._metrics.timed("render_seconds"):
            answer = await self._template.render(job)
        with self._metrics.timed("tokenize_seconds"):
            rendered = await self._pool.run_one(len(answer), job.read, answer)
            text = rendered.text
            ids = await self._encoder.ids(EncodeTemplate(dict(rendered.restore)), text, "chat", context)
        return ids, text[-PROMPT_END:]

    def _facts(self) -> tuple[Limits, ModelFacts]:
        welcome = self._link.welcome
        if welcome is None or welcome.facts is None:
            raise RequestError("STARTING", "the engine is starting: no worker is ready yet", retry_after_seconds=1.0)
        return welcome.limits, welcome.facts
