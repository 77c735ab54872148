"""The tokens that a chat template writes behind a turn of the assistant: by one of them the model ends its answer."""

from typing import Final

from quire.frontend.chat.template import ChatTemplate
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, ChatMessage, RequestError
from quire.proto.messages.params import ParameterError

ASKED, ANSWERED, NEXT = "Hello.", "Quire answered.", "Quire is asked again."
CHAT: Final = (ChatMessage("user", ASKED), ChatMessage("assistant", ANSWERED), ChatMessage("user", NEXT))


async def behind_answer(template: ChatTemplate, tokenizer: TextTokenizer) -> tuple[list[int], list[str]]:
    """The ids of all tokens behind an answer that ends a chat, and between one and the next turn's text; the special
    texts among them, in order. Both are empty where the template shows neither chat.
    """
    ids: list[int] = []
    texts: list[str] = []
    for messages in (CHAT[:2], CHAT):
        try:
            job = template.job(Chat(messages, add_generation_prompt=False))
            shown = job.read(await template.render(job)).text
        except (ParameterError, RequestError):
            continue  # a template may want other turns
        tail = shown.rpartition(ANSWERED)[2].partition(NEXT)[0] if ANSWERED in shown else ""
        ids += tokenizer.encode_template(tail, {})
        texts += [one.content for one in tokenizer.specials.find(tail)]
    return ids, list(dict.fromkeys(texts))
