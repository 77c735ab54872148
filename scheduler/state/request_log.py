"""Logs of what happened to each output, for `Explanation`. Decode steps add nothing, so memory and time stay small."""

from collections import deque
from itertools import islice
from typing import Literal, NamedTuple

from quire.proto.messages.introspection import EndedOutput, Moment, Story

MAX_ENTRIES = 64
"""Entries that one output's log keeps."""
MAX_ENDED = 1024
"""Ended outputs whose logs are kept."""
MAX_DETAIL = 240
"""Characters of an entry's detail."""

EntryKind = Literal["queued", "blocked", "admitted", "chunk", "first_token", "preempted", "restarted", "finished"]


class LogEntry(NamedTuple):
    """One event of an output, or several chunks of its prompt as one."""

    seconds: float
    """Time since the request's arrival."""
    kind: EntryKind
    num_tokens: int
    detail: str = ""
    num_chunks: int = 0
    """Chunks in this entry; 0 unless `kind` is "chunk"."""
    chunk_seconds: float = 0.0
    """Time of the steps in which these chunks ran."""

    def moment(self) -> Moment:
        detail = self.detail
        if self.num_chunks == 1:
            detail = f"{self.chunk_seconds * 1e3:.1f} ms"
        elif self.num_chunks:
            each = self.chunk_seconds / self.num_chunks * 1e3
            detail = f"{self.num_chunks} chunks, {each:.1f} ms each"
        return Moment(self.seconds, self.kind, self.num_tokens, detail)


class OutputLog:
    """The entries of one output, at most `MAX_ENTRIES`: neighbouring chunks are merged, then the middle is left out."""

    __slots__ = ("_entries", "_num_left_out")

    def __init__(self) -> None:
        self._entries: list[LogEntry] = []
        self._num_left_out = 0

    def add(self, entry: LogEntry) -> None:
        if len(self._entries) >= MAX_ENTRIES:
            self._shorten()
        self._entries.append(entry)

    def moments(self) -> list[Moment]:
        moments = [entry.moment() for entry in self._entries]
        if self._num_left_out:
            place = min(MAX_ENTRIES // 2, len(moments) - 1)
            after = moments[place]
            detail = f"{after.detail} ({self._num_left_out} moments before this one are left out)".lstrip()
            moments[place] = Moment(after.seconds, after.what, after.num_tokens, detail)
        return moments

    def _shorten(self) -> None:
        merged: list[LogEntry] = []
        is_open = False
        for entry in self._entries:
            if entry.num_chunks and is_open:
                before = merged[-1]
                merged[-1] = LogEntry(
                    entry.seconds,
                    "chunk",
                    before.num_tokens + entry.num_tokens,
                    "",
                    before.num_chunks + entry.num_chunks,
                    before.chunk_seconds + entry.chunk_seconds,
                )
                is_open = False
            else:
                merged.append(entry)
                is_open = bool(entry.num_chunks)
        if len(merged) >= MAX_ENTRIES:
            del merged[MAX_ENTRIES // 2]
            self._num_left_out += 1
        self._entries = merged


class EndedOutputs:
    """The `MAX_ENDED` outputs that ended last, with their logs."""

    def __init__(self) -> None:
        self.count = 0
        """Outputs that have ended so far."""
        self._ended: deque[tuple[EndedOutput, OutputLog]] = deque(maxlen=MAX_ENDED)

    def add(self, ended: EndedOutput, log: OutputLog) -> None:
        self._ended.append((ended, log))
        self.count += 1

    def after(self, count: int) -> tuple[EndedOutput, ...]:
        """Those that ended since `count` had, as far as they are kept, oldest first; all for a count of the future."""
        num_new = self.count - count if count <= self.count else len(self._ended)
        first = max(0, len(self._ended) - num_new)
        return tuple(ended for ended, _ in islice(self._ended, first, None))

    def newest(self, label: str) -> int:
        """The newest arrival among the requests of this label, or 0."""
        return max((ended.arrival for ended, _ in self._ended if ended.label == label), default=0)

    def stories(self, label: str, arrival: int) -> list[Story]:
        """Stories of the ended outputs of one request."""
        return [
            Story(ended.output_index, "finished", 0, ended.usage, tuple(log.moments()))
            for ended, log in self._ended
            if ended.arrival == arrival and ended.label == label
        ]
