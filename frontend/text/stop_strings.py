"""The search for stop strings in a text that arrives in pieces, linear in the text (Knuth, Morris, Pratt)."""

from collections.abc import Sequence


class _Pattern:
    """One stop string as an automaton; `state` is the number of its characters that the text's end matches."""

    __slots__ = ("_failure", "state", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.state = 0
        self._failure = [0] * len(text)
        longest = 0
        for i in range(1, len(text)):
            while longest and text[i] != text[longest]:
                longest = self._failure[longest - 1]
            if text[i] == text[longest]:
                longest += 1
            self._failure[i] = longest

    def feed(self, char: str) -> bool:
        """Take a character; True where the text now ends with the whole string."""
        state = self.state
        while state and char != self.text[state]:
            state = self._failure[state - 1]
        self.state = state + 1 if char == self.text[state] else 0
        return self.state == len(self.text)


class StopMatcher:
    """Finds the first stop string that is complete; text that may become one is held back."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._patterns = [_Pattern(text) for text in stops]
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take more text; the text that is safe to show. When `matched` is set afterwards, the output has ended."""
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            char = buffer[position]
            complete = [pattern.text for pattern in self._patterns if pattern.feed(char)]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return buffer[: position + 1 if self._include else position + 1 - len(self.matched)]
        hold = max(pattern.state for pattern in self._patterns)
        cut = len(buffer) - hold
        self._held = buffer[cut:]
        return buffer[:cut]

    def flush(self) -> str:
        """The text held back, for an output that ended otherwise."""
        text, self._held = self._held, ""
        return text
