"""Reasoning before an answer that has marks of its own: </think><answer>...</answer>, which no client wants to see."""

from collections.abc import Sequence

from quire.frontend.parsing.partial_match import PartialMatcher
from quire.frontend.parsing.piece import Piece
from quire.frontend.parsing.reasoning.think import ThinkParser, behind_breaks


class WrappedAnswerParser(ThinkParser):
    """A `ThinkParser` that takes off an answer's marks, and line breaks next to them, where the answer has any.

    What follows the closing mark is text.
    """

    def __init__(
        self,
        start: str,
        end: str,
        starts_in_reasoning: bool,
        *,
        answer: tuple[str, str],
        dropped: Sequence[str] = (),
        thinks: bool,
    ) -> None:
        """`answer`: the marks around it. `dropped`: marks that end an answer without an opening one, or the message.

        `thinks`: False where the prompt has closed the reasoning.
        """
        super().__init__(start, end, starts_in_reasoning)
        self._end, (self._opening, self._closing) = end, answer
        self._answer_end = PartialMatcher(answer[1])
        self._dropped = PartialMatcher(*dropped) if dropped else None
        if not thinks:
            self._state = self._closed

    def go_on(self, begun: str) -> None:
        """Go on behind a message that has begun so, with its reasoning over."""
        begun = begun.rstrip()
        if begun.endswith(self._opening):
            self._state = self._unwrapped
        elif not begun.endswith(self._end):
            is_wrapped = begun.rfind(self._opening) > begun.rfind(self._closing)
            self._state = self._wrapped if is_wrapped else self._answer

    def finish(self) -> Piece:
        if self._state == self._wrapped:
            self._text.append("\n" * self._num_breaks)
        return super().finish()

    def _before(self, text: str, at: int) -> int:
        at = super()._before(text, at)
        if self._state == self._answer:
            self._state = self._closed
        return at

    def _closed(self, text: str, at: int) -> int:
        at = behind_breaks(text, at)
        if text.startswith(self._opening, at):
            self._state = self._unwrapped
            return at + len(self._opening)
        if not self._opening.startswith(text[at:]):
            self._state = self._answer
        return at

    def _unwrapped(self, text: str, at: int) -> int:
        """State behind the opening mark of the answer, which swallows line breaks."""
        at = behind_breaks(text, at)
        if at < len(text):
            self._state = self._wrapped
        return at

    def _wrapped(self, text: str, at: int) -> int:
        begin, mark = self._answer_end.find(text, at)
        shown = text[at:begin].rstrip("\n")
        if shown:
            self._text.append("\n" * self._num_breaks + shown)
            self._num_breaks = 0
        self._num_breaks += begin - at - len(shown)
        if mark:
            self._num_breaks = 0
            self._state = self._behind_answer
        return begin + len(mark)

    def _behind_answer(self, text: str, at: int) -> int:
        at = behind_breaks(text, at)
        if at < len(text):
            self._state = self._answer
        return at

    def _answer(self, text: str, at: int) -> int:
        if self._dropped is None:
            return super()._answer(text, at)
        begin, mark = self._dropped.find(text, at)
        self._text.append(text[at:begin])
        return begin + len(mark)
