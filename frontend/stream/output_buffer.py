"""One output of a request: its tokens and text so far, and which part of both is unread."""

from array import array
from collections.abc import Callable, Iterator

from quire.frontend.text.detokenizer import Detokenizer, text_of
from quire.frontend.text.stop_strings import StopMatcher
from quire.proto import api
from quire.proto.messages.message import Usage
from quire.proto.messages.requests import OutputLogprobs, PositionLogprobs

COST_PER_TOKEN = 8
"""Unread bytes that a token counts for."""
COST_PER_LOGPROB = 16
"""Unread bytes that the logprob of one candidate counts for."""


class OutputBuffer:
    """A buffer fed by the scheduler client and emptied by the reader. The next token has the position `num_tokens`."""

    __slots__ = (
        "_detokenizer",
        "_logprobs",
        "_min_tokens",
        "_num_logprobs",
        "_num_read",
        "_stops",
        "_text",
        "_token_ids",
        "ended",
        "finished",
        "index",
        "last_token_at",
        "num_tokens",
        "read_end",
        "silent_position",
    )

    def __init__(self, index: int, detokenizer: Detokenizer, stops: StopMatcher | None, min_tokens: int) -> None:
        self.index = index
        self.num_tokens = 0
        self.last_token_at = 0.0
        """Monotonic time of the newest token; 0.0: none arrived."""
        self.silent_position = -1
        """Position of the stop token, which has no text."""
        self.ended = False
        """True once no further token counts."""
        self.finished: api.Finished | None = None
        self.read_end = False
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._token_ids = array("i")
        self._num_read = 0
        self._text: list[str] = []
        """Texts that unread tokens brought, and the rest at the end."""
        self._logprobs: list[PositionLogprobs] = []
        self._num_logprobs = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended this output."""
        return self._stops.matched if self._stops is not None else None

    def push(self, token_id: int) -> int:
        """Take the next token; the unread bytes that it counts for."""
        position = self.num_tokens
        self.num_tokens = position + 1
        self._token_ids.append(token_id)
        text = self._detokenizer.push(token_id) if position != self.silent_position else ""
        if text and self._stops is not None and self.num_tokens > self._min_tokens:
            text = self._stops.feed(text)
            self.ended = self._stops.matched is not None
        self._text.append(text)
        return COST_PER_TOKEN + len(text)

    def push_logprobs(self, message: OutputLogprobs) -> int:
        """Take what is new and belongs to a token that counts; the unread bytes that it counts for."""
        skip = self._num_logprobs - message.first_position
        if skip < 0:
            return 0
        entries = message.entries[skip : skip + self.num_tokens - self._num_logprobs]
        self._logprobs += entries
        self._num_logprobs += len(entries)
        return sum(COST_PER_LOGPROB * (1 + len(entry.top_ids) + len(entry.named_ids)) for entry in entries)

    def finish(
        self, reason: api.FinishWord, usage: Usage, stop_token_id: int = -1, error: api.ErrorDetail | None = None
    ) -> None:
        """Set the terminal event; a stop string found before wins over the scheduler's reason."""
        self.ended = True
        matched = self.stop_string
        if matched is None:
            rest = self._detokenizer.flush()
            if self._stops is not None:
                rest = self._stops.feed(rest) + ("" if self._stops.matched else self._stops.flush())
            self._text.append(rest)
            matched = self.stop_string
        self.finished = api.Finished(
            output_index=self.index,
            finish_reason="stop" if matched is not None else reason,
            usage=usage,
            stop_string=matched,
            stop_token_id=stop_token_id if matched is None and stop_token_id >= 0 else None,
            error=error if matched is None else None,
        )

    def deltas(
        self, with_ids: bool, token_bytes: Callable[[int], bytes], by_token: bool = False
    ) -> Iterator[api.Delta]:
        """The text, tokens and logprobs since the last call: at most one delta, or `by_token` one for each token."""
        texts, self._text = self._text, []
        logprobs, self._logprobs = self._logprobs, []
        ids = self._token_ids[self._num_read :] if with_ids else ()
        self._num_read = self.num_tokens
        length = max(len(texts), len(logprobs))
        for at in range(0, length, 1 if by_token else max(1, length)):
            part = slice(at, at + 1) if by_token else slice(None)
            entries = [with_text(entry, token_bytes) for entry in logprobs[part]]
            delta = api.Delta(self.index, "".join(texts[part]), ids[part], entries)
            if delta.text or delta.token_ids or delta.logprobs:
                yield delta

    def token_bytes(self) -> bytes:
        """All tokens so far as little-endian int32, for a new scheduler."""
        return self._token_ids.tobytes()


def with_text(entry: PositionLogprobs, token_bytes: Callable[[int], bytes]) -> api.TokenLogprobs:
    """The scheduler's logprobs of one position with the text of their tokens."""
    shown = token_bytes(entry.token_id)
    return api.TokenLogprobs(
        entry.token_id,
        text_of(shown),
        entry.logprob,
        entry.rank,
        _candidates(entry.top_ids, entry.top_logprobs, token_bytes),
        _candidates(entry.named_ids, entry.named_logprobs, token_bytes),
        shown,
    )


def _candidates(
    ids: tuple[int, ...], logprobs: tuple[float, ...], token_bytes: Callable[[int], bytes]
) -> tuple[api.Candidate, ...]:
    shown = [token_bytes(token) for token in ids]
    return tuple(
        api.Candidate(token, text_of(one), logprob, one)
        for token, one, logprob in zip(ids, shown, logprobs, strict=True)
    )
