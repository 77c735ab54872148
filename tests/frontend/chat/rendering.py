"""Chats rendered by a template, in its processes or without them."""

import json

from quire.frontend.chat import render_child
from quire.frontend.chat.template import ChatTemplate, RenderedChat
from quire.proto.api import Chat, ChatMessage

SPECIALS = ("<|end|>", "<|turn|>", "<|start|>")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HI = (ChatMessage("user", "hi"),)


def made(source: str, seconds: float = 5.0) -> ChatTemplate:
    return ChatTemplate({"default": source}, TOKENS, SPECIALS, seconds)


async def rendered(template: ChatTemplate, chat: Chat) -> RenderedChat:
    job = template.job(chat)
    return job.read(await template.render(job))


def in_process(template: ChatTemplate, chat: Chat) -> tuple[str, dict]:
    """Without the process around it."""
    job = template.job(chat)
    answer = render_child.prepare(json.dumps(template.sources).encode())(job.payload)
    done = job.read(answer)
    return done.text, dict(done.originals)
