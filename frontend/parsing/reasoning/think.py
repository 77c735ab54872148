"""Reasoning between two marks, before the answer: <think>...</think> and its like.

The model may open it itself, find it opened by the template, or not think at all. Line breaks next to the marks belong
to them. What never closes is reasoning. Where the marks are tokens of their own, they count behind text, too.
"""

from collections.abc import Callable, Sequence

from quire.frontend.parsing.partial_match import PartialMatcher
from quire.frontend.parsing.piece import Part, Piece
from quire.proto.api import Thought

MAX_SPACE = 64
"""Most white space before an opening mark; after more it is plain text."""


class ThinkParser:
    """A `ReasoningParser`: one method for each state."""

    def __init__(
        self,
        start: str,
        end: str,
        starts_in_reasoning: bool,
        *,
        other_marks: Sequence[tuple[str, str]] = (),
        ends_before: Sequence[str] = (),
        after_text: bool = False,
    ) -> None:
        """`other_marks`: pairs like `start` and `end`. `ends_before`: what the reasoning ends before, too."""
        self._starts = (start, *(other for other, _ in other_marks))
        self._ends_before = frozenset(ends_before)
        self._ending = PartialMatcher(end, *(other for _, other in other_marks), *ends_before)
        self._beginning = PartialMatcher(*self._starts) if after_text else None
        self._starts_in_reasoning = starts_in_reasoning
        self._state: Callable[[str, int], int] = self._before
        self._unread = ""
        self._num_breaks = 0
        """Line breaks held back: the mark that may follow swallows them."""
        self._parts: list[Part] = []
        """Parts before the newest reasoning and the text behind it."""
        self._thought: list[str] = []
        self._text: list[str] = []

    def feed(self, text: str) -> Piece:
        text, at = self._unread + text, 0
        while at < len(text):
            state, begin = self._state, at
            at = state(text, at)
            if at == begin and self._state == state:
                break
        self._unread = text[at:]
        return self._split()

    def finish(self) -> Piece:
        if self._state == self._reasoning or (self._state == self._before and self._starts_in_reasoning):
            self._thought.append("\n" * self._num_breaks + self._unread)
        else:
            self._text.append(self._unread)
        return self._split()

    def _split(self) -> Piece:
        self._end_text()
        piece = Piece(tuple(self._parts))
        self._parts.clear()
        return piece

    def _end_text(self) -> None:
        """Put reasoning and text aside: more reasoning may follow."""
        if self._thought:
            self._parts.append(Thought("".join(self._thought)))
        if text := "".join(self._text):
            self._parts.append(text)
        self._thought.clear()
        self._text.clear()

    def _before(self, text: str, at: int) -> int:
        """State before the opening mark, which may come even if the template wrote one already."""
        mark = text.lstrip()
        num_spaces = len(text) - len(mark)
        if num_spaces <= MAX_SPACE:
            for start in self._starts:
                if mark.startswith(start):
                    self._state = self._opened
                    return num_spaces + len(start)
            if any(start.startswith(mark) for start in self._starts):
                return at
        self._state = self._opened if self._starts_in_reasoning else self._answer
        return at

    def _opened(self, text: str, at: int) -> int:
        """State after the opening mark, which swallows line breaks."""
        at = behind_breaks(text, at)
        if at < len(text):
            self._state = self._reasoning
        return at

    def _reasoning(self, text: str, at: int) -> int:
        begin, mark = self._ending.find(text, at)
        shown = text[at:begin].rstrip("\n")
        if shown:
            self._thought.append("\n" * self._num_breaks + shown)
            self._num_breaks = 0
        self._num_breaks += begin - at - len(shown)
        if not mark:
            return begin
        self._num_breaks = 0
        self._state = self._closed
        return begin if mark in self._ends_before else begin + len(mark)

    def _closed(self, text: str, at: int) -> int:
        """State after the closing mark, which swallows line breaks."""
        at = behind_breaks(text, at)
        if at < len(text):
            self._state = self._answer
        return at

    def _answer(self, text: str, at: int) -> int:
        begin, mark = self._beginning.find(text, at) if self._beginning is not None else (len(text), "")
        self._text.append(text[at:begin])
        if mark:
            self._end_text()
            self._state = self._opened
        return begin + len(mark)


def behind_breaks(text: str, at: int) -> int:
    """The position behind line breaks."""
    while at < len(text) and text[at] == "\n":
        at += 1
    return at
