"""The logprobs of a prompt on their way to the reader, in pieces: a long prompt has a million candidates."""

from collections.abc import Callable

from quire.frontend.stream.output_buffer import with_text
from quire.proto import api
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

MAX_CANDIDATES = 1024
"""Most candidates of one event."""


class PromptLogprobBuffer:
    """The positions that were received and not read yet. Repeats are ignored."""

    def __init__(self) -> None:
        self._entries: list[PositionLogprobs] = []
        self._num_received = 0

    def __bool__(self) -> bool:
        """True while some are unread."""
        return bool(self._entries)

    def push(self, message: OutputLogprobs) -> bool:
        """Take what is new of a message; False where positions before it are missing."""
        skip = self._num_received + 1 - message.first_position
        if skip < 0:
            return False
        entries = message.entries[skip:]
        self._entries += entries
        self._num_received += len(entries)
        return True

    def take(self, token_bytes: Callable[[int], bytes]) -> api.PromptLogprobs:
        """The next event; at least one position must be unread."""
        width = 2 + len(self._entries[0].top_ids) + len(self._entries[0].named_ids)
        first = self._num_received + 1 - len(self._entries)
        entries = self._entries[: max(1, MAX_CANDIDATES // width)]
        del self._entries[: len(entries)]
        return api.PromptLogprobs(first, tuple(with_text(entry, token_bytes) for entry in entries))

    def clear(self) -> None:
        self._entries.clear()
