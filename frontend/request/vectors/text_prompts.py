"""Prompts of texts that are embedded: each behind a prompt of the model's own, or both as messages of a chat."""

from collections.abc import Sequence

from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.vectors.vector_call import INPUT, VectorCall
from quire.frontend.text.encode_jobs import EncodeText
from quire.proto.api import Chat, ChatMessage
from quire.proto.messages.params import ParameterError

FILLERS = ("0", "1 2 3 4")
"""Texts without a token in common, between which a template shows where it ends."""


class TextPrompts:
    """One per call. Cutting a chat keeps the end that its template writes: many vectors are those of the last token."""

    def __init__(self, tokenizer: PromptTokenizer, shared: VectorCall, in_front: str) -> None:
        """`in_front`: the prompt, empty for none."""
        self._tokenizer = tokenizer
        self._shared = shared
        self._in_front = in_front

    async def ids(self, text: str, special: bool = True, most: int | None = None) -> Sequence[int]:
        """The token ids of a text, cut to what the call keeps, and to `most`. `special`: those that the tokenizer puts
        around every text, none of which a chat has. Raises `ParameterError` on `INPUT`."""
        shared = self._shared
        if not shared.model.sentence.chats:
            return await shared.encode(self._in_front + text, special, most)
        text = text if most is None else await cut_text(shared, text, most)
        ids, keep = await self._rendered(text), shared.keep
        if keep is None or len(ids) <= keep:
            return ids
        end = await self._end()
        kept = ids[len(ids) - keep :] if shared.keep_last else ids[:keep]
        return [*kept[: max(0, keep - len(end))], *end[-keep:]]

    async def _end(self) -> Sequence[int]:
        one, other = [await self._rendered(filler) for filler in FILLERS]
        same = 0
        while same < min(len(one), len(other)) and one[-1 - same] == other[-1 - same]:
            same += 1
        return one[len(one) - same :]

    async def _rendered(self, text: str) -> Sequence[int]:
        messages = [ChatMessage("system", self._in_front)] if self._in_front else []
        return await render(self._tokenizer, self._shared, Chat([*messages, ChatMessage("user", text)], False), False)


async def render(tokenizer: PromptTokenizer, shared: VectorCall, chat: Chat, special: bool) -> Sequence[int]:
    """The token ids of a chat by the model's template. `special`: with those around every text. Raises `ParameterError`
    on `INPUT`."""
    context = shared.facts.max_model_len if shared.keep is None else None
    try:
        return await tokenizer.rendered_ids(shared.model, chat, context, special)
    except ParameterError as error:  # the fields of a chat are none of a text
        text = str(error).removeprefix(f"{error.field}: ")
        raise ParameterError(INPUT, text, error.reason) from error


async def cut_text(shared: VectorCall, text: str, most: int | None, parse_special: bool = False) -> str:
    """The text of at most so many tokens, and of no more than the call keeps: what is rendered with each document costs
    as much again."""
    most = min((one for one in (most, shared.keep) if one is not None), default=None)
    if most is None or not text:
        return text
    job = EncodeText(False, parse_special, most + 1, shared.keep_last)
    ids = await shared.model.async_tokenizer.ids(job, text, INPUT)
    if len(ids) <= most:
        return text
    kept = ids[len(ids) - most :] if shared.keep_last else ids[:most]
    return await shared.model.async_tokenizer.text(kept, False, INPUT) if most else ""
