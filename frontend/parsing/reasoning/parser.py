"""What every parser of reasoning is: text in as it comes, what was thought and what was said out."""

from typing import NamedTuple, Protocol


class Split(NamedTuple):
    """A piece of the model's text, taken apart."""

    reasoning: str = ""
    text: str = ""


class ReasoningParser(Protocol):
    """Of one output. Whatever the pieces a text arrives in, what comes out joins to the same."""

    def feed(self, text: str) -> Split:
        """Take more text."""

    def finish(self) -> Split:
        """The output has ended; nothing may be fed afterwards."""
