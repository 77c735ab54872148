"""Kimi K2: <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>, in a section.

What stands before the arguments is the call's id: the model expects it back with the result.
"""

import re

from quire.frontend.parsing.tools.marked_calls.marked_call import Head, MarkedCallParser
from quire.frontend.parsing.tools.parser import NAME_CHAR

_ID = re.compile(rf"(?:functions\.)?({NAME_CHAR}+?)(:[0-9]{{1,9}})?")


class KimiK2Parser(MarkedCallParser):
    section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    call = ("<|tool_call_begin|>", "<|tool_call_end|>")
    before_arguments = "<|tool_call_argument_begin|>"

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self._ids: set[str] = set()

    def head(self, text: str) -> Head | None:
        text = text.strip()
        match = _ID.fullmatch(text)
        if match is None:
            return None
        is_new = match.group(2) is not None and text not in self._ids
        self._ids.add(text)
        return Head(match.group(1), text if is_new else "")
