"""Reasoning between two marks, before the answer: <think>...</think> and its like.

The model may open it itself, find it opened by the template, or not think at all. Line breaks next to the marks belong
to them. What never closes is reasoning.
"""

from collections.abc import Callable

from quire.frontend.parsing.partial_match import PartialMatcher
from quire.frontend.parsing.reasoning.parser import Split

MAX_SPACE = 64
"""Most white space before an opening mark; after more it is plain text."""


class ThinkParser:
    """A `ReasoningParser`: one method for each state."""

    def __init__(self, start: str, end: str, starts_in_reasoning: bool) -> None:
        self._start = start
        self._end = end
        self._ending = PartialMatcher(end)
        self._starts_in_reasoning = starts_in_reasoning
        self._state: Callable[[str], Split] = self._before
        self._unread = ""
        self._num_breaks = 0
        """Line breaks held back: the mark that may follow swallows them."""

    def feed(self, text: str) -> Split:
        return self._state(self._unread + text) if self._unread else self._state(text)

    def finish(self) -> Split:
        rest, self._unread = self._unread, ""
        in_reasoning = self._state == self._reasoning or (self._state == self._before and self._starts_in_reasoning)
        return Split(reasoning="\n" * self._num_breaks + rest) if in_reasoning else Split(text=rest)

    def _before(self, text: str) -> Split:
        """State before the opening mark, which may come even if the template wrote one already."""
        self._unread = text
        mark = text.lstrip()
        near = len(text) - len(mark) <= MAX_SPACE
        if near and self._start.startswith(mark) and mark != self._start:
            return Split()
        if near and mark.startswith(self._start):
            self._state = self._opened
            return self._opened(mark[len(self._start) :])
        self._state = self._opened if self._starts_in_reasoning else self._answer
        return self._state(text)

    def _opened(self, text: str) -> Split:
        """State after the opening mark, which swallows line breaks."""
        self._unread = ""
        text = text.lstrip("\n")
        if not text:
            return Split()
        self._state = self._reasoning
        return self._reasoning(text)

    def _reasoning(self, text: str) -> Split:
        begin, mark = self._ending.find(text, 0)
        self._unread = "" if mark else text[begin:]
        shown = text[:begin].rstrip("\n")
        breaks = begin - len(shown)
        if shown:
            shown, self._num_breaks = "\n" * self._num_breaks + shown, 0
        self._num_breaks += breaks
        if mark:
            self._num_breaks = 0
            self._state = self._closed
            return Split(shown, self._closed(text[begin + len(mark) :]).text)
        return Split(shown)

    def _closed(self, text: str) -> Split:
        """State after the closing mark, which swallows line breaks."""
        self._unread = ""
        text = text.lstrip("\n")
        if text:
            self._state = self._answer
        return Split(text=text)

    def _answer(self, text: str) -> Split:
        self._unread = ""
        return Split(text=text)
