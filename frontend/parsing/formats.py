"""How the text of a chat's answers is taken apart: which parsers, from which state on."""

from dataclasses import dataclass, replace

import msgspec

from quire.frontend.parsing.reasoning import table as reasoning_table
from quire.frontend.parsing.reasoning.think import ThinkParser
from quire.frontend.parsing.tools import table as tools_table
from quire.frontend.parsing.tools.forced import NAMED, NamedParser, RequiredParser, structured
from quire.frontend.parsing.tools.parser import StateParser
from quire.proto.api import Chat, GenerateRequest
from quire.proto.messages.params import ParameterError


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one request; every output gets parsers of its own."""

    reasoning: reasoning_table.Row | None
    inside: bool
    """The outputs begin in the reasoning."""
    thinks: bool
    """Reasoning may come, for the prompt did not close it."""
    show_reasoning: bool
    tools: type[StateParser] | None
    names: frozenset[str]
    """Of the tools that may be called."""
    one_call: bool

    @property
    def markers(self) -> frozenset[str]:
        """Special tokens the parsers must see."""
        markers = set(self.tools.markers) if self.tools is not None else set()
        if self.reasoning is not None:
            markers |= {self.reasoning.start, self.reasoning.end}
        return frozenset(markers)

    def reasoning_parser(self) -> ThinkParser | None:
        return self.reasoning.parser(self.inside) if self.reasoning is not None and self.thinks else None

    def tool_parser(self) -> StateParser | None:
        return self.tools(self.names) if self.tools is not None else None


@dataclass(frozen=True, slots=True)
class Formats:
    """Of the model that is served."""

    reasoning: reasoning_table.Row | None
    tools: tools_table.Row | None

    @classmethod
    def of(cls, tool_parser: str, reasoning_parser: str, template: str) -> "Formats":
        """By name, or "auto" by the chat template's text. Raises `ValueError` naming the setting."""
        return cls(reasoning_table.choose(reasoning_parser, template), tools_table.choose(tool_parser, template))

    def reading(self, chat: Chat, prompt_end: str, show_reasoning: bool) -> Reading | None:
        """None when the answers are text and nothing else. The chat has been checked."""
        row = self.reasoning
        if row is not None and chat.continue_final_message:
            said = chat.messages[-1].content
            opened, closed = said.rfind(row.start), said.rfind(row.end)
            prompt_end = row.start if opened > closed else row.end if closed >= 0 else prompt_end
        parser, names = self._tools(chat)
        if row is None and parser is None:
            return None
        return Reading(
            reasoning=row,
            inside=row is not None and row.starts_inside(prompt_end),
            thinks=row is not None and not row.is_over(prompt_end),
            show_reasoning=show_reasoning,
            tools=parser,
            names=names,
            one_call=chat.parallel_tool_calls is False,
        )

    def _tools(self, chat: Chat) -> tuple[type[StateParser] | None, frozenset[str]]:
        choice = chat.tool_choice or "auto"
        names = frozenset(tool.name for tool in chat.tools)
        if choice.startswith(NAMED):
            return NamedParser, frozenset((choice[len(NAMED) :],))
        if choice == "required":
            return RequiredParser, names
        if not chat.tools or choice == "none" or self.tools is None:
            return None, frozenset()
        return self.tools.parser, names


def with_forced_calls(request: GenerateRequest, chat: Chat) -> GenerateRequest:
    """The request with the grammar its `tool_choice` asks for. Raises `ParameterError`. The chat has been checked."""
    forced = structured(chat)
    if forced is None:
        return request
    if request.structured is not None:
        message = f"excludes tool_choice {chat.tool_choice!r}, which has a structure of its own; set only one of them"
        raise ParameterError("structured", message)
    return replace(request, structured=forced)


def with_reasoning_first(request: GenerateRequest, reading: Reading | None) -> GenerateRequest:
    """The request with its grammar applied behind the reasoning, where there may be any."""
    grammar = request.structured
    if grammar is None or grammar.after or reading is None or reading.reasoning is None or not reading.thinks:
        return request
    return replace(request, structured=msgspec.structs.replace(grammar, after=reading.reasoning.end))
