"""Prompts as token ids: texts are encoded, chats are rendered by the model's template first."""

from collections.abc import Mapping, Sequence

from quire.frontend.chat.checks import check_chat
from quire.frontend.errors import empty_prompt, engine_starting, too_many_entries
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request import validate
from quire.frontend.request.infill import infill_ids
from quire.frontend.request.served_model import ServedModel
from quire.frontend.text.encode_jobs import EncodeTemplate, EncodeText
from quire.frontend.text.encode_threads import EncodeThreads
from quire.frontend.text.special_token_escape import unescaped
from quire.frontend.text.token_range import first_outside, is_within
from quire.proto.api import Chat, GenerateRequest, Tokens
from quire.proto.messages.params import ParameterError
from quire.proto.messages.requests import ModelFacts

MAX_DETOKENIZE_IDS = 1 << 20
PROMPT_END = 64
"""Number of characters that show in which state a template leaves the model: more than any mark has."""


class PromptTokenizer:
    """One per frontend, for requests and for clients that only want the tokens."""

    def __init__(self, threads: EncodeThreads, metrics: Metrics) -> None:
        self._threads = threads
        self._metrics = metrics

    async def prompt_ids(
        self, model: ServedModel, request: GenerateRequest, facts: ModelFacts
    ) -> tuple[Sequence[int], str]:
        """The prompt's tokens, and the end of a chat's text. Raises `ParameterError` or `RequestError`."""
        source, keep, end = request.input, validate.num_kept(request, facts), ""
        context = facts.max_model_len if keep is None else None
        if source is None:
            raise ParameterError("input", "is empty; set one of prompt, prompt_token_ids and chat", "EMPTY_PROMPT")
        ids: Sequence[int]
        if isinstance(source, Chat):
            field = "chat"
            ids, end, _ = await self._render(model, source, context)
        elif isinstance(source, str):
            field = "prompt"
            with self._metrics.timed("tokenize_seconds"):
                if request.suffix is not None and (request.suffix or model.infill is not None):
                    ids = await infill_ids(model, request, source, facts.max_model_len)
                else:
                    job = EncodeText(request.add_special_tokens is not False, bool(request.parse_special))
                    ids = await model.async_tokenizer.ids(job, source, field, context)
        else:
            field, ids = "prompt_token_ids", source
        if not ids:
            raise empty_prompt(field)
        return _kept(ids, keep, request.truncation_side), end[-PROMPT_END:]

    async def rendered(
        self, model: ServedModel, request: GenerateRequest, facts: ModelFacts
    ) -> tuple[Sequence[int], str]:
        """The prompt's tokens, and its text: a chat as its template writes it; empty for token ids.

        Raises `ParameterError` or `RequestError`.
        """
        validate.check_truncation(request)
        source = request.input
        if not isinstance(source, Chat):
            ids, _ = await self.prompt_ids(model, request, facts)
            return ids, source if isinstance(source, str) else ""
        await self._threads.run_single(source.cost, check_chat, source)
        ids, text, originals = await self._render(model, source)
        plain = await self._threads.run_single(len(text), unescaped, text, originals)
        return _kept(ids, validate.num_kept(request, facts), request.truncation_side), plain

    async def tokenize(
        self,
        model: ServedModel,
        text: str | Chat | None,
        add_special_tokens: bool | None = None,
        parse_special: bool | None = None,
        with_texts: bool = False,
    ) -> Tokens:
        """The tokens of a text or a chat. Raises `ParameterError` or `RequestError`."""
        if text is None:
            raise ParameterError("text", "set text or chat", "EMPTY_PROMPT")
        validate.check_for_text(text, add_special_tokens, parse_special)
        if isinstance(text, Chat):
            await self._threads.run_single(text.cost, check_chat, text)
            ids, _, _ = await self._render(model, text)
        else:
            job = EncodeText(add_special_tokens is not False, bool(parse_special))
            ids = await model.async_tokenizer.ids(job, text, "text")
        texts = model.async_tokenizer.texts(ids) if with_texts else ()
        facts = model.facts
        return Tokens(ids, texts, facts.max_model_len if facts is not None else 0)

    async def fits(self, model: ServedModel, chat: Chat) -> bool:
        """True where a chat leaves room for an answer. Raises `ParameterError` or `RequestError` for what is wrong."""
        if (facts := model.facts) is None:
            raise engine_starting()
        await self._threads.run_single(chat.cost, check_chat, chat)
        try:
            ids, _, _ = await self._render(model, chat, facts.max_model_len)
        except ParameterError as error:
            if error.reason != "CONTEXT_LENGTH_EXCEEDED":
                raise
            return False
        return len(ids) < min(facts.max_model_len, facts.num_kv_tokens)

    async def detokenize(self, model: ServedModel, ids: Sequence[int], skip_special_tokens: bool | None) -> str:
        """The text of token ids. Raises `ParameterError` or `RequestError`."""
        if len(ids) > MAX_DETOKENIZE_IDS:
            raise too_many_entries("token_ids", len(ids), MAX_DETOKENIZE_IDS)
        facts = model.facts
        width = facts.vocab_size if facts is not None else 1 << 31
        if not is_within(ids, width) and (index := first_outside(ids, width)) is not None:
            message = f"token id {ids[index]} at index {index} is outside [0, {width})"
            raise ParameterError("token_ids", message, "TOKEN_OUT_OF_RANGE")
        return await model.async_tokenizer.text(ids, skip_special_tokens is not False, "token_ids")

    async def _render(
        self, model: ServedModel, chat: Chat, context: int | None = None
    ) -> tuple[Sequence[int], str, Mapping[int, str]]:
        """The tokens of a checked chat, its text, and what that has escaped. `context`: see `AsyncTokenizer.ids`."""
        template = model.template
        if template is None:
            raise ParameterError("chat", "this model has no chat template; use prompt", "UNSUPPORTED")
        model.check_tools(chat)
        job = await self._threads.run_single(chat.cost, template.job, chat)
        with self._metrics.timed("render_seconds"):
            answer = await template.render(job)
        with self._metrics.timed("tokenize_seconds"):
            rendered = await self._threads.run_single(len(answer), job.read, answer)
            text = rendered.text
            encode = EncodeTemplate(dict(rendered.originals))
            ids = await model.async_tokenizer.ids(encode, text, "chat", context)
        return ids, text, encode.originals


def _kept(ids: Sequence[int], keep: int | None, side: str | None) -> Sequence[int]:
    if keep is None:
        return ids
    return ids[:keep] if side == "right" else ids[-keep:]
