"""The format of a chat's answers: which parsers split their text, and in which state they begin."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from quire.frontend.parsing.reasoning import table as reasoning_table
from quire.frontend.parsing.reasoning.parser import ReasoningParser
from quire.frontend.parsing.reasoning.wish import wanted
from quire.frontend.parsing.reasoning.wrapped_answer import WrappedAnswerParser
from quire.frontend.parsing.shown import Shown
from quire.frontend.parsing.tools import table as tools_table
from quire.frontend.parsing.tools.forced import (
    ForcedHarmonyParser,
    NamedParser,
    RequiredParser,
    forced_tools,
    structured,
    structured_channels,
)
from quire.frontend.parsing.tools.marked_calls.harmony import HarmonyParser
from quire.frontend.parsing.tools.parser import StateParser
from quire.proto.api import Chat, GenerateRequest, Tool
from quire.proto.messages.channels import ChannelCall, Channels
from quire.proto.messages.params import ParameterError, Structured

OFF = "off"
"""The setting by which an answer is not looked through, as an empty one."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of one request's answers; every output gets parsers of its own."""

    reasoning: reasoning_table.ReasoningFormat | None
    """Its format; the tool parser reads a joint one, too."""
    starts_in_reasoning: bool
    """True where the prompt has opened the reasoning already."""
    may_reason: bool
    """False where the prompt has closed the reasoning already."""
    show_reasoning: bool
    tools: type[StateParser] | None
    offered: Sequence[Tool]
    """The tools that may be called."""
    single_call: bool
    """True: only the first tool call is shown."""
    id_length: int = 0
    """Length of the ids of its calls; see `StateParser`."""
    begun: str = ""
    """The message that the client has begun, or the end of a prompt that has closed the reasoning: the output goes on
    with it."""

    @property
    def markers(self) -> frozenset[str]:
        """Special tokens that the parsers must see."""
        markers = set(self.tools.markers) if self.tools is not None else set()
        if self.reasoning is not None and not self.reasoning.is_joint:
            markers.update(self.reasoning.markers)
        return frozenset(markers)

    def reasoning_parser(self) -> ReasoningParser | None:
        if self.reasoning is None or self.reasoning.is_joint:
            return None
        finds_calls = self.tools is not None and self.tools not in (NamedParser, RequiredParser)
        row, inside = self.reasoning, self.starts_in_reasoning
        parser = row.parser(inside, may_reason=self.may_reason, finds_calls=finds_calls)
        if isinstance(parser, WrappedAnswerParser) and self.begun and not self.may_reason:
            parser.go_on(self.begun)
        return parser

    def tool_parser(self, whole: bool) -> StateParser | None:
        """`whole`: the answer is given whole, and may take back what turns out to be no call."""
        if self.tools is None:
            return None
        parser = self.tools.of(self.offered)
        parser.checks_arguments = whole
        parser.id_length = self.id_length or parser.id_length
        if self.reasoning is not None and self.reasoning.is_joint and self.starts_in_reasoning:
            parser.feed(self.reasoning.start)  # as the prompt has written it
        return parser


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The formats of the model that is served."""

    reasoning: reasoning_table.ReasoningFormat | None
    tools: tools_table.ToolFormat | None
    id_length: int = 0
    """Length of ids of calls that the chat template demands; 0: any."""

    @classmethod
    def choose(cls, tool_parser: str, reasoning_parser: str, shown: Shown | None = None) -> "AnswerFormats":
        """Choose by name, or for "auto" by what a chat template shows. Raises `ValueError` naming the setting."""
        tool_parser, reasoning_parser = ("" if name == OFF else name for name in (tool_parser, reasoning_parser))
        reasoning = reasoning_table.choose(reasoning_parser, shown)
        tools = tools_table.choose(tool_parser, shown)
        joint = next((row.name for row in (reasoning, tools) if row is not None and row.is_joint), "")
        if not joint:
            return cls(reasoning, tools)
        for setting, given, row in (
            ("tool_call_parser", tool_parser, tools),
            ("reasoning_parser", reasoning_parser, reasoning),
        ):
            if given not in ("", "auto") and row is not None and not row.is_joint:
                raise ValueError(f"{setting}: {given!r} does not go with {joint}, which reads both; leave it at auto")
        return cls(reasoning_table.choose(joint), tools_table.choose(joint) if tool_parser else None)

    def reads(self, turns: Sequence[str]) -> bool:
        """True where the tool parser finds the call in one of a template's turns."""
        return self.tools is not None and any(map(self.tools.reads, turns))

    @property
    def is_joint(self) -> bool:
        """True where one parser reads reasoning, calls and the answer: gpt-oss writes them as messages in channels."""
        return self.reasoning is not None and self.reasoning.is_joint

    def for_chat(self, chat: Chat, prompt_end: str, show_reasoning: bool) -> AnswerFormat | None:
        """The format of a checked chat's answers; None when they are text and nothing else."""
        row = self.reasoning
        begun = chat.messages[-1].text if chat.continue_final_message else ""
        if row is not None and begun:
            prompt_end = row.start if _in_thought(begun, row.pairs) else row.end
        parser, offered = self._tools(chat)
        if row is None and parser is None:
            return None
        wish = wanted(json.loads(chat.template_kwargs or "{}"))
        is_switched_on = row is not None and (not row.switch or wish is True)
        starts_in_reasoning = row is not None and row.starts_in_reasoning(prompt_end, wish is False)
        may_begin = row is not None and not row.closes_reasoning(prompt_end) and is_switched_on
        return AnswerFormat(
            reasoning=row,
            starts_in_reasoning=starts_in_reasoning,
            may_reason=starts_in_reasoning or may_begin,
            show_reasoning=show_reasoning,
            tools=parser,
            offered=offered,
            single_call=chat.parallel_tool_calls is False,
            id_length=self.id_length or (0 if self.tools is None else self.tools.parser.id_length),
            begun=begun or (prompt_end if row is not None and row.closes_reasoning(prompt_end) else ""),
        )

    def _tools(self, chat: Chat) -> tuple[type[StateParser] | None, Sequence[Tool]]:
        choice = chat.tool_choice or "auto"
        if forced := forced_tools(chat):
            kind = ForcedHarmonyParser if self.is_joint else RequiredParser if choice == "required" else NamedParser
            return kind, forced
        if self.is_joint:
            return HarmonyParser, chat.tools if choice != "none" and self.tools is not None else ()
        if not chat.tools or choice == "none" or self.tools is None:
            return None, ()
        return self.tools.parser, chat.tools


def _in_thought(begun: str, pairs: Sequence[tuple[str, str]]) -> bool:
    """True where a message that has begun so is in its reasoning."""
    starts, ends = zip(*pairs, strict=True)
    return max(map(begun.rfind, starts)) > max(map(begun.rfind, ends))


def with_forced_calls(request: GenerateRequest, chat: Chat, formats: AnswerFormats) -> GenerateRequest:
    """The request with the grammar that its `tool_choice` asks for. The chat has been checked.

    Raises `ParameterError`.
    """
    forced = structured(chat, formats.is_joint)
    if forced is None:
        return request
    if request.structured is not None:
        message = f"excludes tool_choice {chat.tool_choice!r}, which has a structure of its own; set only one of them"
        raise ParameterError("structured", message)
    return replace(request, structured=forced)


def with_reasoning_first(request: GenerateRequest, answer_format: AnswerFormat | None) -> GenerateRequest:
    """The request with its grammar applied after the reasoning that has begun, or that the model may begin."""
    grammar = request.structured
    if grammar is None or grammar.after or answer_format is None or (row := answer_format.reasoning) is None:
        return request
    if row.is_joint:
        return replace(request, structured=_in_channels(grammar, answer_format))
    if not answer_format.may_reason:
        return request
    after = row.end if answer_format.starts_in_reasoning else ""
    return replace(request, structured=msgspec.structs.replace(grammar, after=after, thoughts=row.pairs))


def _in_channels(grammar: Structured, answer_format: AnswerFormat) -> Structured:
    """The grammar of the answer, or of a call in its place; of calls alone where one is forced."""
    if grammar.kind == "channels":
        channels = msgspec.json.decode(grammar.text, type=Channels)
        in_message = answer_format.starts_in_reasoning or not answer_format.may_reason
        return structured_channels(msgspec.structs.replace(channels, in_message=in_message))
    if not answer_format.may_reason:
        return grammar
    calls = tuple(ChannelCall(tool.name) for tool in answer_format.offered)
    return structured_channels(Channels(grammar, calls, answer_format.starts_in_reasoning))
