"""MiniMax M3: tags behind a mark, in which arguments are elements and so are the parts of lists and objects.

]<]minimax[>[<tool_call>]<]minimax[>[<invoke name="name">
]<]minimax[>[<key>value]<]minimax[>[</key>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>
"""

from collections.abc import Mapping

from quire.frontend.parsing.partial_match import PartialMatcher, mark_at
from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.tools.parser import MAX_NAME
from quire.frontend.parsing.tools.tagged.argument_value import JSON, ArgumentValue
from quire.frontend.parsing.tools.tagged.nested_value import NestedValue
from quire.frontend.parsing.tools.tagged.tagged_parser import NO_SCHEMAS, TaggedParser

MARK = "]<]minimax[>["
_MARKS = PartialMatcher(MARK)
_ENDS = ("/invoke", "/tool_call", "tool_call")
_NEXT = "invoke name="


class MinimaxM3Parser(TaggedParser):
    block = (f"{MARK}<tool_call>", f"{MARK}</tool_call>")
    call = (f"{MARK}<invoke name=", f"{MARK}</invoke>")
    parameter = (f"{MARK}<", f"{MARK}</")
    markers = (MARK, "<tool_call>", "</tool_call>")

    def __init__(self, names: frozenset[str], schemas: Mapping[str, str] = NO_SCHEMAS) -> None:
        super().__init__(names, schemas)
        self._parameter = ""
        self._nested: NestedValue | None = None
        self._raw: list[str] = []
        """A nested value as it was written."""

    def finish(self) -> Piece:
        if self._state == self._value_text and self._nested is not None:
            self._emit_value("".join(self._raw) + self._unread)
            self._unread = ""
        return super().finish()

    def _in_call(self, text: str, at: int) -> int:
        at = self._skip_space(text, at)
        tag, after = _tag_at(text, at)
        if not tag or at == len(text):
            if tag is None:
                self._emit_arguments("}")
                self._fail()
            return at
        self._held.clear()
        if tag not in _ENDS and not tag.startswith(_NEXT):
            return after if tag.startswith("/") else self._begin_value(tag.strip(), at, after)
        self._emit_arguments("}")
        self._state = self._in_block if tag not in ("/tool_call", "tool_call") else self._between
        return after if tag.startswith("/") else at

    def _begin_value(self, key: str, at: int, after: int) -> int:
        self._parameter, self._nested = key, None
        self._raw.clear()
        return super()._begin_value(key, at, after)

    def _value_text(self, text: str, at: int) -> int:
        begin, mark = _MARKS.find(text, at)
        self._take(text[at:begin])
        if not mark:
            return begin
        tag, after = _tag_at(text, begin)
        if tag == "":
            return begin
        if tag is None:
            self._take(mark)
            return begin + len(mark)
        is_inner = self._nested is not None and self._nested.is_open
        if tag in _ENDS or tag.startswith(_NEXT) or (tag == f"/{self._parameter}" and not is_inner):
            self._end_value()
            return after if tag == f"/{self._parameter}" else begin
        if self._nested is None and self._value.is_string:
            self._take(text[begin:after])
            return after
        self._element(tag.strip())
        self._raw.append(text[begin:after])
        return after

    def _element(self, tag: str) -> None:
        if self._nested is None:
            self._nested = NestedValue()
            self._raw.append(self._value.cut())
            self._value = ArgumentValue(JSON, trims=False)
        if tag.startswith("/"):
            self._nested.end(tag[1:])
        else:
            self._nested.begin(tag)

    def _take(self, text: str) -> None:
        if self._nested is None:
            self._emit_value(self._value.feed(text))
        else:
            self._nested.text(text)
            self._raw.append(text)

    def _end_value(self) -> None:
        if self._nested is None:
            self._emit_value(self._value.end())
        else:
            types = self._types[self._name]
            self._emit_value(self._nested.json(types, types.schema(self._parameter)))
        self._state = self._in_call


def _tag_at(text: str, at: int) -> tuple[str | None, int]:
    """The tag behind a mark, without its brackets, and its end. "": more text may make it one; None: there is none."""
    mark = mark_at(text, at, (MARK,))
    if not mark:
        return mark, at
    begin = at + len(mark)
    end = text.find(">", begin, begin + MAX_NAME)
    if end < 0:
        return ("" if len(text) - begin < MAX_NAME else None), at
    tag = text[begin + 1 : end]
    return (tag if text[begin] == "<" and tag.strip(" /") and "<" not in tag else None), end + 1
