"""A few chats of the server's own, rendered at start: they show in which formats the model answers."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

from quire.frontend.chat.template import ChatTemplate, RenderJob
from quire.frontend.parsing.shown import CALL, TOOL, Shown
from quire.frontend.sandbox.errors import SandboxCrashed, SandboxLost, SandboxTimeout
from quire.proto.api import Chat, ChatMessage
from quire.proto.messages.params import ParameterError

MAX_CHARS = 1 << 16
"""Longest rendering that is looked at; the chats have a few words."""
MAX_TRIES = 3
"""Processes in which one chat is tried."""
USER, GOES_ON = ChatMessage("user", "Hello."), ChatMessage("user", "And now?")
THOUGHT, ANSWER = "I think of it.", "So be it."
SWITCHES = ("", '{"enable_thinking": true, "thinking": true}', '{"enable_thinking": false, "thinking": false}')
IDS = (CALL.id, "lookUp000")
"""Ids of the call: templates of Mistral take nine letters and digits alone."""


class Probe:
    """The renderings of one template. Behind a chat that took too long or broke the process, none is tried."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._is_stuck = False

    async def shown(self, marks: Sequence[tuple[str, str]]) -> Shown:
        """`marks`: pairs that it may strip. Raises `SandboxLost` where no process lives long enough to render."""
        chats = [Chat([USER], template_kwargs=switches) for switches in SWITCHES]
        prompts = [await self._text(chat) for chat in (*chats, Chat([USER], tools=[TOOL]))]
        answer = ChatMessage("assistant", ANSWER, reasoning=THOUGHT)
        turns = [await self._text(_ended(replace(chat, messages=[USER, answer]))) for chat in chats[:2]]
        called = [text async for text in self._called()]
        calls = [turn for text in called for turn in _turn_from(text, prompts[-1])]
        stripped = [pair for pair in marks if pair[1] in self._template.text and await self._strips(*pair)]
        turns += called
        return Shown(tuple(prompts), tuple(turns), tuple(calls), tuple(stripped), self._template.text)

    async def _called(self) -> AsyncIterator[str]:
        """The renderings of a call. Templates take arguments as an object, as text or as both."""
        for id in IDS:
            turn = ChatMessage("assistant", "", reasoning=THOUGHT, tool_calls=[replace(CALL, id=id)])
            job = self._job(_ended(Chat([USER, turn], tools=[TOOL])))
            texts = [await self._rendered(one) for one in (job, _with_text_arguments(job))]
            for text in filter(None, texts):
                yield text
            if any(texts):
                return

    async def _strips(self, start: str, end: str) -> bool:
        """True where it leaves out what an earlier turn thought; some templates do so before the last answer alone."""
        turn, last = ChatMessage("assistant", f"{start}{THOUGHT}{end}{ANSWER}"), ChatMessage("assistant", "Yes.")
        text = await self._text(Chat([USER, turn, GOES_ON, last, GOES_ON]))
        return ANSWER in text and THOUGHT not in text

    async def _text(self, chat: Chat) -> str:
        return await self._rendered(self._job(chat))

    def _job(self, chat: Chat) -> RenderJob:
        return self._template.job(chat, is_own=True)

    async def _rendered(self, job: RenderJob) -> str:
        """The prompt; empty where the template refuses the chat, or makes too much of it."""
        for num_left in reversed(range(0 if self._is_stuck else MAX_TRIES)):
            try:
                text = job.read(await self._template.render(job)).text
                return text if len(text) <= MAX_CHARS else ""
            except ParameterError as error:
                self._is_stuck = isinstance(error.__cause__, SandboxTimeout | SandboxCrashed)
                break
            except SandboxLost:
                if not num_left:
                    raise
        return ""


def _ended(chat: Chat) -> Chat:
    return replace(chat, add_generation_prompt=False)


def _with_text_arguments(job: RenderJob) -> RenderJob:
    asked = json.loads(job.payload)
    for call in asked["variables"]["messages"][-1]["tool_calls"]:
        call["function"]["arguments"] = CALL.arguments
    return replace(job, payload=json.dumps(asked).encode())


def _turn_from(text: str, asked: str) -> Iterator[str]:
    """The turn behind the prompt that asks for it, and behind the user's, where it shows the call."""
    turn = text.rpartition(USER.text)[2]
    if TOOL.name in turn and "Oslo" in turn:
        if text.startswith(asked):
            yield text[len(asked) :]
        yield turn
