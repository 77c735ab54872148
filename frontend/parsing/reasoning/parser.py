"""The interface of reasoning parsers: text goes in as it comes, reasoning and answer come out."""

from typing import NamedTuple, Protocol


class Split(NamedTuple):
    """A piece of the model's text, split."""

    reasoning: str = ""
    text: str = ""


class ReasoningParser(Protocol):
    """A parser of one output. However a text is cut into pieces, what comes out joins to the same."""

    def feed(self, text: str) -> Split:
        """Take more text."""

    def finish(self) -> Split:
        """The output has ended; nothing may be fed afterwards."""
