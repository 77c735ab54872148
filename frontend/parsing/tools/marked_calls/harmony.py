"""Harmony, as gpt-oss writes it: messages in channels, which are thoughts, calls or the answer.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json
<|message|>{...}<|call|>, or <|channel|>final<|message|>...<|return|>. The header of the first message is begun by the
prompt; its recipient may stand before the channel. Text without a header is the answer.
"""

import re

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.tools.parser import MAX_NAME, StateParser
from quire.proto.api import Thought

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
FUNCTIONS = "functions."
MAX_HEADER = MAX_NAME + 256
_ENDS = (END, CALL, RETURN, START, CHANNEL)
_ENDING = PartialMatcher(*_ENDS)
_BEGINS = (START, CHANNEL, "assistant", "to=")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser(StateParser):
    """Reads all of an answer, its reasoning too."""

    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._beginnings = [self._between]
        self._has_text = False
        self._has_reasoning = False
        self._is_empty = True
        """True in a message without text so far."""

    def finish(self) -> Piece:
        if self._state == self._thought:
            self._parts.append(Thought(self._unread))
        elif self._state == self._arguments:
            self._emit_arguments(self._unread)
        if self._state in (self._thought, self._arguments) or self._unread.startswith((START, CHANNEL)):
            self._unread = ""
        return super().finish()

    def _between(self, text: str, at: int) -> int:
        """State before a message's header."""
        at = self._skip_space(text, at)
        mark = mark_at(text, at, _BEGINS)
        if mark == "" or at == len(text):
            return at
        self._state = self._header if mark is not None else self._answer
        self._is_empty = True
        return at

    def _header(self, text: str, at: int) -> int:
        end = text.find(MESSAGE, at, at + MAX_HEADER)
        if end < 0 and len(text) - at < MAX_HEADER:
            return at
        if end < 0:
            self._state = self._answer
            self._hold(text[at : at + len(START)])
            return at + len(START)
        header = text[at:end]
        end += len(MESSAGE)
        self._hold(text[at:end])
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        name = recipient.group(1) if recipient is not None else ""
        if self._names and name.startswith(FUNCTIONS):
            name = name.removeprefix(FUNCTIONS)
        elif name not in self._names:
            name = ""
        if 1 <= len(name) <= MAX_NAME:
            self._open_call(name)
            self._state = self._arguments
            return end
        self._num_settled += sum(map(len, self._held))
        self._held.clear()
        is_builtin = recipient is not None and not recipient.group(1).startswith(FUNCTIONS)
        thinks = is_builtin or (channel is not None and channel.group(1) == "analysis")
        self._state = self._thought if thinks else self._answer
        return end

    def _arguments(self, text: str, at: int) -> int:
        end, mark = _ENDING.find(text, at)
        arguments = text[at:end] if not self._is_empty else text[at:end].lstrip()
        self._emit_arguments(arguments)
        self._is_empty = self._is_empty and not arguments
        if mark and self._is_empty:
            self._emit_arguments("{}")
        return self._behind(end, mark)

    def _thought(self, text: str, at: int) -> int:
        end, mark = _ENDING.find(text, at)
        self._num_settled += end - at
        if end > at:
            separator = "\n" if self._is_empty and self._has_reasoning else ""
            self._parts.append(Thought(separator + text[at:end]))
            self._is_empty, self._has_reasoning = False, True
        return self._behind(end, mark)

    def _answer(self, text: str, at: int) -> int:
        end, mark = _ENDING.find(text, at)
        if end > at:
            if self._is_empty and self._has_text:
                self._parts.append("\n")
            self._emit_text(text[at:end])
            self._is_empty, self._has_text = False, True
        return self._behind(end, mark)

    def _behind(self, end: int, mark: str) -> int:
        """The position behind what ends a message; a mark that begins the next one is not read."""
        if not mark:
            return end
        self._state = self._between
        if mark in (START, CHANNEL):
            return end
        self._num_settled += len(mark)
        return end + len(mark)
