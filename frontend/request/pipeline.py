"""The one path of every request, whatever protocol it came by: prepare, submit, stream back.

`RequestPreparer` leads up to the submission; `RequestStream` is the way back (detokenize, stop strings, events).
"""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext

from quire.frontend.call import Call
from quire.frontend.config import FrontendConfig
from quire.frontend.limits.byte_budget import current_body
from quire.frontend.request import validate
from quire.frontend.request.model_lookup import ModelLookup
from quire.frontend.request.overload import Overload
from quire.frontend.request.preparer import RequestPreparer
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.vectors.classes import classify
from quire.frontend.request.vectors.embeddings import embed
from quire.frontend.request.vectors.scores import score
from quire.frontend.request.vectors.vector_call import Gatherer
from quire.frontend.stream.parsed_stream import ParsedStream
from quire.frontend.stream.request_stream import RequestStream
from quire.frontend.stream.scheduler_client import SchedulerClient
from quire.frontend.telemetry.observer import Observer
from quire.frontend.text.encode_threads import EncodeThreads
from quire.frontend.text.tokenizer import Unshown
from quire.proto.api import (
    Chat,
    Classifications,
    ClassifyRequest,
    Embeddings,
    EmbedRequest,
    GenerateRequest,
    RequestError,
    ScoreRequest,
    Scores,
    Tokens,
)
from quire.proto.messages.requests import ModelFacts

MAX_PREPARING = 4096
"""Most requests that are rendered, tokenized or embedded at once: the scheduler bounds only what was submitted."""


class RequestPipeline:
    """One per frontend. Its only state across requests is the sequence of seeds."""

    def __init__(
        self,
        config: FrontendConfig,
        models: ModelLookup,
        scheduler: SchedulerClient,
        threads: EncodeThreads,
        observer: Observer,
    ) -> None:
        self._models = models
        self._scheduler = scheduler
        self._gatherer = Gatherer(config, observer)
        self._observer = observer
        self.overload = Overload(observer.metrics)
        observer.metrics.num_open = lambda: self.num_open
        repeatable = random.Random(f"{config.seed}/{config.index}")
        draw_seed: Callable[[int], int] = secrets.randbits if config.seed is None else repeatable.getrandbits
        self._prompt_tokenizer = PromptTokenizer(threads, observer.metrics, config.default_timeout_seconds)
        self._preparer = RequestPreparer(config, self._prompt_tokenizer, threads, draw_seed, observer.metrics)
        self._num_preparing = 0
        self._preparing_tasks: set[asyncio.Task[object]] = set()
        self._ended = False
        self._num_finishing = 0
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    @property
    def is_draining(self) -> bool:
        return self._draining

    async def start(self) -> None:
        """Start a process for the chat template. Raises `SandboxLost`."""
        await self._models.start()

    async def close(self) -> None:
        """End the child processes."""
        await self._models.close()

    def end_preparing(self) -> None:
        """Fail every request that has no stream yet with DRAINING: the drain's time is over."""
        self._ended = True
        for task in self._preparing_tasks:
            task.cancel()

    @property
    def num_open(self) -> int:
        """Number of requests between arrival and their last event, or whose work after it is not done."""
        return self._num_preparing + self._scheduler.num_streams + self._num_finishing

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Make a drain wait for the block: work for a request whose stream has ended."""
        self._num_finishing += 1
        try:
            yield
        finally:
            self._num_finishing -= 1

    @asynccontextmanager
    async def open(self, request: GenerateRequest, call: Call) -> AsyncIterator[RequestStream | ParsedStream]:
        """Submit a request; leaving the block aborts what still runs.

        Raises `ParameterError` or `RequestError` before anything was submitted.
        """
        with self._observer.request(request, call) as observed, ExitStack() as files:
            with self._preparing():
                model = await self._models.find(request.model)
                prepared = await self._preparer.prepare(model, request, call, observed.arrived, files)
                stream = model.scheduler.open(prepared, model.tokenizer)
                observed.submitted(stream)
            try:
                yield ParsedStream.wrap(stream, whole=not call.streams)
            finally:
                model.scheduler.close(stream)
                if model.scheduler.welcome is not None:
                    self.overload.ended(stream, model.scheduler.welcome.limits)

    async def facts(self, model: str | None) -> ModelFacts:
        """The facts of a served model. Raises `RequestError` for one that is not, and before they are known."""
        return validate.served((await self._models.find(model)).scheduler.welcome)[1]

    async def embed(self, request: EmbedRequest, call: Call, names: Sequence[str] = ()) -> Embeddings:
        """The inputs' vectors. `names`: the inputs' fields for errors. Raises `ParameterError` or `RequestError`."""
        with self._preparing():
            model = await self._models.find(request.model)
            return await embed(self._gatherer, self._prompt_tokenizer, model, request, call, names)

    async def score(
        self, request: ScoreRequest, call: Call, query: str = "query", documents: str = "documents"
    ) -> Scores:
        """The documents' scores. `query`, `documents`: the fields' names. Raises `ParameterError` or `RequestError`."""
        with self._preparing():
            model = await self._models.find(request.model)
            return await score(self._gatherer, self._prompt_tokenizer, model, request, call, query, documents)

    async def classify(
        self, request: ClassifyRequest, call: Call, names: Sequence[str] = (), *, of_tokens: bool = True
    ) -> Classifications:
        """Numbers of the inputs' labels, or of their tokens'. `names`: the inputs' fields. `of_tokens`: where not, a
        model that labels tokens is refused. Raises `ParameterError` or `RequestError`."""
        with self._preparing():
            model = await self._models.find(request.model)
            tokenizer = self._prompt_tokenizer
            return await classify(self._gatherer, tokenizer, model, request, call, names, of_tokens=of_tokens)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        """Count a request that has no stream yet. Raises `RequestError` while draining, or for too many of them."""
        if self._draining:
            raise RequestError("DRAINING", "this server is draining", retry_after_seconds=1.0)
        if self._num_preparing >= MAX_PREPARING:
            message = f"{self._num_preparing} requests are being prepared here; at most {MAX_PREPARING} may"
            raise RequestError("QUEUE_FULL", message, retry_after_seconds=1.0)
        task = asyncio.current_task()
        assert task is not None
        self._num_preparing += 1
        self._preparing_tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._ended:
                raise
            task.uncancel()
            message = "the server ended before this request was prepared"
            raise RequestError("DRAINING", message, retry_after_seconds=1.0) from None
        finally:
            self._num_preparing -= 1
            self._preparing_tasks.discard(task)
            if (body := current_body()) is not None:
                body.prepared()

    async def tokenize(
        self,
        text: str | Chat | None,
        model: str | None,
        add_special_tokens: bool | None = None,
        parse_special: bool | None = None,
        with_texts: bool = False,
        call: Call | None = None,
    ) -> Tokens:
        """See `PromptTokenizer.tokenize`."""
        served = await self._models.find(model)
        tenant = "" if call is None else call.tenant
        has_media = isinstance(text, Chat) and any(message.media for message in text.messages)
        with self._preparing() if has_media else nullcontext():  # to load media takes as long as for an answer
            return await self._prompt_tokenizer.tokenize(
                served, text, add_special_tokens, parse_special, with_texts, tenant
            )

    async def fits(self, chat: Chat, model: str | None) -> bool:
        """See `PromptTokenizer.fits`."""
        return await self._prompt_tokenizer.fits(await self._models.find(model), chat)

    async def rendered(self, request: GenerateRequest) -> tuple[Sequence[int], str]:
        """See `PromptTokenizer.rendered`. Raises `RequestError` (STARTING) before the context's length is known."""
        served = await self._models.find(request.model)
        _, facts = validate.served(served.scheduler.welcome)
        return await self._prompt_tokenizer.rendered(served, request, facts)

    async def detokenize(self, ids: Sequence[int], model: str | None, skip_special_tokens: bool | None) -> str:
        """See `PromptTokenizer.detokenize`."""
        return await self._prompt_tokenizer.detokenize(await self._models.find(model), ids, skip_special_tokens)

    async def unshown(self, model: str | None, skip_special_tokens: bool) -> Unshown:
        """See `TextTokenizer.unshown`. Raises `RequestError`."""
        return (await self._models.find(model)).tokenizer.unshown(skip_special_tokens)

    async def token_bytes(self, token_id: int, model: str | None) -> bytes:
        """See `TextTokenizer.token_bytes`. Raises `RequestError`."""
        return (await self._models.find(model)).tokenizer.token_bytes(token_id)
