"""Reasoning between two marks, before the answer: <think>...</think> and its like.

The model may open it itself, find it opened by the template, or not think at all. Line breaks next to the marks belong
to them. What never closes is reasoning.
"""

from collections.abc import Callable

from quire.frontend.parsing.partial_match import Marks
from quire.frontend.parsing.reasoning.parser import Split

MAX_SPACE = 64
"""More space than this before an opening mark, and it is none."""


class ThinkParser:
    def __init__(self, start: str, end: str, inside: bool) -> None:
        """`inside`: the output begins in the reasoning."""
        self._start = start
        self._end = end
        self._ending = Marks(end)
        self._inside = inside
        self._state: Callable[[str], Split] = self._before
        self._unread = ""
        self._num_breaks = 0
        """Line breaks not told yet: the mark that may follow swallows them."""

    def feed(self, text: str) -> Split:
        return self._state(self._unread + text) if self._unread else self._state(text)

    def finish(self) -> Split:
        rest, self._unread = self._unread, ""
        inside = self._state == self._thinking or (self._state == self._before and self._inside)
        return Split(reasoning="\n" * self._num_breaks + rest) if inside else Split(text=rest)

    def _before(self, text: str) -> Split:
        """An opening mark may come first, even if the template wrote one already."""
        self._unread = text
        mark = text.lstrip()
        near = len(text) - len(mark) <= MAX_SPACE
        if near and self._start.startswith(mark) and mark != self._start:
            return Split()
        if near and mark.startswith(self._start):
            self._state = self._opened
            return self._opened(mark[len(self._start) :])
        self._state = self._opened if self._inside else self._answer
        return self._state(text)

    def _opened(self, text: str) -> Split:
        """Behind the opening mark; line breaks go."""
        self._unread = ""
        text = text.lstrip("\n")
        if not text:
            return Split()
        self._state = self._thinking
        return self._thinking(text)

    def _thinking(self, text: str) -> Split:
        begin, mark = self._ending.find(text, 0)
        self._unread = "" if mark else text[begin:]
        told = text[:begin].rstrip("\n")
        breaks = begin - len(told)
        if told:
            told, self._num_breaks = "\n" * self._num_breaks + told, 0
        self._num_breaks += breaks
        if mark:
            self._num_breaks = 0
            self._state = self._closed
            return Split(told, self._closed(text[begin + len(mark) :]).text)
        return Split(told)

    def _closed(self, text: str) -> Split:
        """Behind the closing mark; line breaks go."""
        self._unread = ""
        text = text.lstrip("\n")
        if text:
            self._state = self._answer
        return Split(text=text)

    def _answer(self, text: str) -> Split:
        self._unread = ""
        return Split(text=text)
