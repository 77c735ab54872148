"""Prompts as token ids: texts are encoded, chats are rendered by the model's template first."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from quire.frontend.chat.checks import check_chat
from quire.frontend.chat.template import RenderedChat
from quire.frontend.errors import empty_prompt, engine_starting, too_many_entries
from quire.frontend.metrics.metrics import Metrics
from quire.frontend.request import validate
from quire.frontend.request.infill import infill_ids
from quire.frontend.request.prompt_images import ImageOwner, media_fields
from quire.frontend.request.served_model import ServedModel
from quire.frontend.request.token_range import first_outside, is_within
from quire.frontend.text.encode_jobs import EncodeTemplate, EncodeText
from quire.frontend.text.encode_threads import EncodeThreads
from quire.frontend.text.special_token_escape import unescaped
from quire.proto.api import Chat, GenerateRequest, Tokens
from quire.proto.messages.media import Media
from quire.proto.messages.params import ParameterError
from quire.proto.messages.requests import ModelFacts

MAX_DETOKENIZE_IDS = 1 << 20
MAX_COUNTED = 1 << 20
"""Most tokens of a chat with images that are counted for a client, where the context has not more."""
PROMPT_END = 64
"""Number of characters that show in which state a template leaves the model: more than any mark has."""
NO_TEXT = "is no text, and no token ids stand for it; send the chat itself, or count its tokens by /tokenize"


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt as the scheduler takes it."""

    ids: Sequence[int]
    end: str = ""
    """The end of a chat's text."""
    media: tuple[Media, ...] = ()


class PromptTokenizer:
    """One per frontend, for requests and for clients that only want the tokens."""

    def __init__(self, threads: EncodeThreads, metrics: Metrics, media_seconds: float) -> None:
        """`media_seconds`: for the images of a chat whose tokens are only counted."""
        self._threads = threads
        self._seconds = media_seconds
        self._metrics = metrics

    async def prompt(
        self, model: ServedModel, request: GenerateRequest, facts: ModelFacts, owner: ImageOwner
    ) -> TokenizedPrompt:
        """The prompt's tokens, and the images among them. Raises `ParameterError` or `RequestError`."""
        source = request.input
        if not isinstance(source, Chat):
            return TokenizedPrompt(await self._plain_ids(model, request, facts))
        keep = validate.num_kept(request, model.defaults, facts)
        rendered = await self._render(model, source)
        context = facts.max_model_len if keep is None else None
        ids, media = await self._placed(model, source, rendered, context, owner)
        if not ids:
            raise empty_prompt("chat")
        return TokenizedPrompt(_kept(ids, keep, request.truncation_side), rendered.text[-PROMPT_END:], media)

    async def _plain_ids(self, model: ServedModel, request: GenerateRequest, facts: ModelFacts) -> Sequence[int]:
        """The tokens of a text, or of ids."""
        source, keep = request.input, validate.num_kept(request, model.defaults, facts)
        context = facts.max_model_len if keep is None else None
        if source is None or isinstance(source, Chat):
            raise ParameterError("input", "is empty; set one of prompt, prompt_token_ids and chat", "EMPTY_PROMPT")
        ids: Sequence[int]
        if isinstance(source, str):
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
        return _kept(ids, keep, request.truncation_side)

    async def rendered(
        self, model: ServedModel, request: GenerateRequest, facts: ModelFacts
    ) -> tuple[Sequence[int], str]:
        """The prompt's tokens, and its text: a chat as its template writes it; empty for token ids.

        Raises `ParameterError` or `RequestError`.
        """
        validate.check_truncation(request)
        source = request.input
        if not isinstance(source, Chat):
            ids = await self._plain_ids(model, request, facts)
            return ids, source if isinstance(source, str) else ""
        for field in media_fields(source):
            raise ParameterError(field, NO_TEXT, "UNSUPPORTED")
        await self._threads.run_single(source.cost, check_chat, source)
        rendered = await self._render(model, source)
        ids = await self._encode(model, rendered)
        plain = await self._threads.run_single(len(rendered.text), unescaped, rendered.text, rendered.originals)
        return _kept(ids, validate.num_kept(request, model.defaults, facts), request.truncation_side), plain

    async def tokenize(
        self,
        model: ServedModel,
        text: str | Chat | None,
        add_special_tokens: bool | None = None,
        parse_special: bool | None = None,
        with_texts: bool = False,
        tenant: str = "",
    ) -> Tokens:
        """The tokens of a text or a chat, those of its images, too. Raises `ParameterError` or `RequestError`."""
        if text is None:
            raise ParameterError("text", "set text or chat", "EMPTY_PROMPT")
        validate.check_for_text(text, add_special_tokens, parse_special)
        if isinstance(text, Chat):
            await self._threads.run_single(text.cost, check_chat, text)
            rendered = await self._render(model, text)
            with ExitStack() as files:
                most = max(MAX_COUNTED, 0 if model.facts is None else model.facts.max_model_len)
                owner = ImageOwner(tenant, "", time.monotonic() + self._seconds, files, most)
                ids, _ = await self._placed(model, text, rendered, None, owner)
        else:
            special, facts = add_special_tokens is not False, model.facts
            job = EncodeText(special, bool(parse_special), ends=special and facts is not None and facts.task == "embed")
            ids = await model.async_tokenizer.ids(job, text, "text")
        texts = model.async_tokenizer.texts(ids) if with_texts else ()
        facts = model.facts
        return Tokens(ids, texts, facts.max_model_len if facts is not None else 0)

    async def rendered_ids(self, model: ServedModel, chat: Chat, context: int | None, special: bool) -> Sequence[int]:
        """The tokens of a query and a document, or of a text, which are checked messages. `context`: see
        `AsyncTokenizer.ids`; `special`: with those that the tokenizer puts around every text. Raises `ParameterError`
        or `RequestError`."""
        return await self._encode(model, await self._render(model, chat), context, special)

    async def embedded(self, model: ServedModel, chat: Chat, owner: ImageOwner, special: bool) -> TokenizedPrompt:
        """The prompt of a chat that becomes a vector. `special`: as every text is. Raises `ParameterError` or
        `RequestError`."""
        await self._threads.run_single(chat.cost, check_chat, chat)
        rendered = await self._render(model, chat)
        ids, media = await self._placed(model, chat, rendered, None, owner, special)
        return TokenizedPrompt(ids, media=media)

    async def fits(self, model: ServedModel, chat: Chat) -> bool:
        """True where a chat leaves room for an answer. Raises `ParameterError` or `RequestError` for what is wrong."""
        if (facts := model.facts) is None:
            raise engine_starting()
        await self._threads.run_single(chat.cost, check_chat, chat)
        try:
            ids = await self._encode(model, await self._render(model, chat), facts.max_model_len)
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

    async def _placed(
        self,
        model: ServedModel,
        chat: Chat,
        rendered: RenderedChat,
        context: int | None,
        owner: ImageOwner,
        special: bool = False,
    ) -> tuple[Sequence[int], tuple[Media, ...]]:
        """The tokens of a rendered chat, those of its images, too. See `PromptImages.placed`."""

        async def encode(text: str) -> Sequence[int]:
            return await self._encode(model, RenderedChat(text, rendered.originals), context, special)

        if model.images is None or not media_fields(chat):
            return await encode(rendered.text), ()
        return await model.images.placed(chat, rendered.text, encode, owner)

    async def _render(self, model: ServedModel, chat: Chat) -> RenderedChat:
        """The text of a checked chat."""
        template = model.template
        if template is None:
            raise ParameterError("chat", "this model has no chat template; use prompt", "UNSUPPORTED")
        model.check_tools(chat)
        model.check_media(chat)
        job = await self._threads.run_single(chat.cost, template.job, chat)
        with self._metrics.timed("render_seconds"):
            answer = await template.render(job)
        return await self._threads.run_single(len(answer), job.read, answer)

    async def _encode(
        self, model: ServedModel, rendered: RenderedChat, context: int | None = None, special: bool = False
    ) -> Sequence[int]:
        """Its tokens. `context`: see `AsyncTokenizer.ids`; `special`: see `EncodeTemplate`."""
        with self._metrics.timed("tokenize_seconds"):
            job = EncodeTemplate(dict(rendered.originals), special)
            return await model.async_tokenizer.ids(job, rendered.text, "chat", context)


def _kept(ids: Sequence[int], keep: int | None, side: str | None) -> Sequence[int]:
    if keep is None:
        return ids
    return ids[:keep] if side == "right" else ids[-keep:]
