"""Prompts of what vectors and numbers are made of: texts, token ids, and chats with the images that stand in them."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from quire.frontend.request.deadline import in_time
from quire.frontend.request.prompt_images import ImageOwner
from quire.frontend.request.prompt_tokenizer import PromptTokenizer
from quire.frontend.request.vectors.vector_call import VectorCall
from quire.frontend.text.pair_template import Pair
from quire.proto.api import Chat
from quire.proto.messages.params import ParameterError

CUTS_NONE = "cuts no prompt with images or videos; leave it unset, and send fewer turns or pictures"


def prompts(
    tokenizer: PromptTokenizer,
    shared: VectorCall,
    inputs: Sequence[str | Sequence[int] | Chat],
    add_special_tokens: bool | None,
    files: ExitStack,
    of_text: Callable[[str, bool], Awaitable[Sequence[int]]] | None = None,
) -> Callable[[int], Awaitable[Pair]]:
    """The function that makes the prompt of an input, by its number. The files of images stay until `files` is closed.

    `of_text`: the ids of an input that is a text, with special tokens or without; None: its own.

    The tokens that the tokenizer puts around a text are left out of a chat unless they are asked for: a template writes
    its own.
    """
    deadline = time.monotonic() + shared.budget_seconds
    owner = ImageOwner(shared.call.tenant, "", deadline, files, shared.facts.max_model_len)

    async def of_chat(chat: Chat) -> Pair:
        has_media = any(message.media for message in chat.messages)
        if has_media and shared.keep is not None:
            raise ParameterError("truncate_prompt_tokens", CUTS_NONE, "UNSUPPORTED")
        made = await in_time(deadline, tokenizer.embedded(shared.model, chat, owner, bool(add_special_tokens)))
        return Pair(made.ids if has_media else await shared.encode(made.ids), media=made.media)

    async def prompt(index: int) -> Pair:
        source = inputs[index]
        special = add_special_tokens is not False
        if of_text is not None and isinstance(source, str):
            return Pair(await of_text(source, special))
        if not isinstance(source, Chat):
            return Pair(await shared.encode(source, special))
        try:
            return await of_chat(source)
        except ParameterError as error:
            name = shared.names[index]
            if not error.field.startswith("chat") or not name.endswith("]"):  # it has no other input
                raise
            text = str(error).removeprefix(f"{error.field}: ")
            raise ParameterError(f"{name}.{error.field}", text, error.reason) from error

    return prompt
