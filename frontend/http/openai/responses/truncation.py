"""`truncation: auto`: the oldest turns of a conversation go until it fits the context."""

from dataclasses import replace

from quire.frontend.context import FrontendContext
from quire.frontend.http.decoding import ignored
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.params import ParameterError

STAY = ("system", "developer")
"""Roles of instructions, which no truncation drops."""


async def shortened(context: FrontendContext, request: GenerateRequest) -> GenerateRequest:
    """The request without as few of its oldest turns as it takes. Raises `ParameterError` or `RequestError`.

    Calls stay with their outputs, instructions and the last turn stay in any case. Looks at tails that grow, not at a
    whole that shrinks: the work depends on the context's size and not on the conversation's.
    """
    chat = request.input
    assert isinstance(chat, Chat)
    if any(message.media for message in chat.messages):
        raise ParameterError("truncation", "drops no turns of a chat with images; leave it out", "UNSUPPORTED")
    fits = context.pipeline.fits
    if await fits(chat, request.model):
        return request
    begins = [index for index, one in enumerate(chat.messages) if one.role not in (*STAY, "tool")][::-1]
    fitting, most = 0, len(begins) - 1  # of begins: the longest tail that is known to fit, or the shortest one
    step = 1
    while fitting + step < most and await fits(_tail(chat, begins[fitting + step]), request.model):
        fitting += step
        step *= 2
    beyond = min(fitting + step, most)
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if await fits(_tail(chat, begins[middle]), request.model):
            fitting = middle
        else:
            beyond = middle
    if not begins:
        return request
    shorter = _tail(chat, begins[fitting])
    ignored.note(f"truncation={len(chat.messages) - len(shorter.messages)}")
    return replace(request, input=shorter)


def _tail(chat: Chat, begin: int) -> Chat:
    """The chat from one of its turns on, behind all instructions before."""
    instructions = [one for one in chat.messages[:begin] if one.role in STAY]
    return replace(chat, messages=[*instructions, *chat.messages[begin:]])
