"""Prompts as token ids: texts are encoded, chats are rendered by the model's template first."""

from collections.abc import Sequence

from quire.frontend.chat.checks import check_chat
from quire.frontend.chat.template import ChatTemplate
from quire.frontend.config import FrontendConfig
from quire.frontend.errors import empty_prompt, too_many_entries
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request import validate
from quire.frontend.stream.scheduler_client import SchedulerClient
from quire.frontend.text.async_tokenizer import AsyncTokenizer
from quire.frontend.text.encode_jobs import EncodeTemplate, EncodeText
from quire.frontend.text.encode_threads import EncodeThreads
from quire.frontend.text.token_range import first_outside, is_within
from quire.proto.api import Chat, GenerateRequest, Tokens
from quire.proto.messages.params import ParameterError
from quire.proto.messages.requests import ModelFacts

MAX_DETOKENIZE_IDS = 1 << 20
PROMPT_END = 64
"""Number of characters that show in which state a template leaves the model: more than any mark has."""


class PromptTokenizer:
    """One per frontend, for requests and for clients that only want the tokens."""

    def __init__(
        self,
        config: FrontendConfig,
        template: ChatTemplate | None,
        async_tokenizer: AsyncTokenizer,
        threads: EncodeThreads,
        scheduler: SchedulerClient,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._template = template
        self._async_tokenizer = async_tokenizer
        self._threads = threads
        self._scheduler = scheduler
        self._metrics = metrics

    async def prompt_ids(self, request: GenerateRequest, facts: ModelFacts) -> tuple[Sequence[int], str]:
        """The prompt's tokens, and the end of a chat's text. Raises `ParameterError` or `RequestError`."""
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
                job = EncodeText(request.add_special_tokens is not False, bool(request.parse_special))
                ids = await self._async_tokenizer.ids(job, source, field, context)
        else:
            field, ids = "prompt_token_ids", source
        if not ids:
            raise empty_prompt(field)
        return (ids if keep is None else ids[-keep:]), end

    async def tokenize(
        self,
        text: str | Chat | None,
        model: str | None,
        add_special_tokens: bool | None = None,
        parse_special: bool | None = None,
        with_texts: bool = False,
    ) -> Tokens:
        """The tokens of a text or a chat. Raises `ParameterError` or `RequestError`."""
        validate.check_model(model, self._config)
        if text is None:
            raise ParameterError("text", "set text or chat", "EMPTY_PROMPT")
        validate.check_for_text(text, add_special_tokens, parse_special)
        if isinstance(text, Chat):
            await self._threads.run_single(text.num_chars, check_chat, text)
            ids, _ = await self._render(text)
        else:
            job = EncodeText(add_special_tokens is not False, bool(parse_special))
            ids = await self._async_tokenizer.ids(job, text, "text")
        texts = self._async_tokenizer.texts(ids) if with_texts else ()
        facts = self._facts()
        return Tokens(ids, texts, facts.max_model_len if facts is not None else 0)

    async def detokenize(self, ids: Sequence[int], model: str | None, skip_special_tokens: bool | None) -> str:
        """The text of token ids. Raises `ParameterError` or `RequestError`."""
        validate.check_model(model, self._config)
        if len(ids) > MAX_DETOKENIZE_IDS:
            raise too_many_entries("token_ids", len(ids), MAX_DETOKENIZE_IDS)
        facts = self._facts()
        width = facts.vocab_size if facts is not None else 1 << 31
        if not is_within(ids, width) and (index := first_outside(ids, width)) is not None:
            message = f"token id {ids[index]} at index {index} is outside [0, {width})"
            raise ParameterError("token_ids", message, "TOKEN_OUT_OF_RANGE")
        return await self._async_tokenizer.text(ids, skip_special_tokens is not False, "token_ids")

    def _facts(self) -> ModelFacts | None:
        """The facts of the served model; None before a worker was ready."""
        welcome = self._scheduler.welcome
        return welcome.facts if welcome is not None else None

    async def _render(self, chat: Chat, context: int | None = None) -> tuple[Sequence[int], str]:
        """The tokens of a checked chat, and the end of its text. `context`: see `AsyncTokenizer.ids`."""
        if self._template is None:
            raise ParameterError("chat", "this model has no chat template; use prompt", "UNSUPPORTED")
        job = await self._threads.run_single(chat.num_chars, self._template.job, chat)
        with self._metrics.timed("render_seconds"):
            answer = await self._template.render(job)
        with self._metrics.timed("tokenize_seconds"):
            rendered = await self._threads.run_single(len(answer), job.read, answer)
            text = rendered.text
            encode = EncodeTemplate(dict(rendered.originals))
            ids = await self._async_tokenizer.ids(encode, text, "chat", context)
        return ids, text[-PROMPT_END:]
