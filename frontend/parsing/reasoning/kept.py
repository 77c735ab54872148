"""Reasoning that stays in the answer, with the mark that the template wrote: some models must be shown it again."""

from quire.frontend.parsing.piece import Piece


class KeptReasoning:
    """A `ReasoningParser` that gives everything as text, behind the opening mark."""

    def __init__(self, start: str) -> None:
        self._mark = start

    def feed(self, text: str) -> Piece:
        if not text:
            return Piece()
        mark, self._mark = self._mark, ""
        return Piece((mark + text,))

    def finish(self) -> Piece:
        return Piece()
