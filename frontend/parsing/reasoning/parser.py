"""The interface of reasoning parsers: text goes in as it comes, reasoning and answer come out."""

from typing import Protocol

from quire.frontend.parsing.piece import Piece


class ReasoningParser(Protocol):
    """A parser of one output. However a text is cut into pieces, what comes out joins to the same."""

    def feed(self, text: str) -> Piece:
        """Take more text."""

    def finish(self) -> Piece:
        """The output has ended; nothing may be fed afterwards."""
