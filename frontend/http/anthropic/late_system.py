"""System turns behind the first one, for models whose chat template has no place for them.

Agents send them, and some templates take one system turn, at the beginning, or refuse the whole chat.
"""

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request

from quire.frontend.http import body
from quire.frontend.http.decoding.ignored import note
from quire.frontend.request.pipeline import RequestPipeline
from quire.proto.api import Chat, ChatMessage, ContentPart, TextPart
from quire.proto.messages.params import ParameterError

PROBE = Chat([ChatMessage("user", "a"), ChatMessage("system", "b")])


class LateSystemTurns:
    """One per frontend; remembers which model's template takes them."""

    def __init__(self, pipeline: RequestPipeline) -> None:
        self._pipeline = pipeline
        self._taken: dict[str, bool] = {}

    async def fitted(self, request: Request, chat: Chat, model: str) -> Chat:
        """The chat; where the template refuses late system turns they are text of the user's. Raises `RequestError`."""
        if all(one.role != "system" for one in chat.messages[1:]) or await self._are_taken(model):
            return chat
        note("messages[].role=system")
        messages = await body.beside(request, lambda: folded(chat.messages))
        return replace(chat, messages=messages)

    async def _are_taken(self, model: str) -> bool:
        if model not in self._taken:
            try:
                await self._pipeline.tokenize(PROBE, model)
            except ParameterError as refusal:
                if refusal.field != "chat.messages":  # the request itself will say what is wrong
                    return True
            else:
                self._taken[model] = True
            self._taken.setdefault(model, False)
        return self._taken[model]


def folded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages without late system turns: each is text behind the user's or the tool's turn before it.

    Behind a turn of the assistant it begins one of the user.
    """
    turns: list[tuple[ChatMessage, list[ContentPart]]] = []
    """Each with the parts behind its own."""
    for one in messages:
        before = turns[-1][0].role if turns else ""
        if (one.role == "system" and before in ("user", "tool")) or one.role == before == "user":
            turns[-1][1].extend([TextPart("\n\n"), *one.parts])
        else:
            turns.append((replace(one, role="user") if one.role == "system" and turns else one, []))
    return [replace(one, content=[*one.parts, *more]) if more else one for one, more in turns]
