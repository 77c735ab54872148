"""What happened to an output, told when somebody asks. Decode steps add nothing, so memory and time stay small."""

from collections import deque
from typing import Literal, NamedTuple

from quire.proto.messages.introspection import Moment, Story
from quire.proto.messages.message import Usage

MAX_MOMENTS = 64
MAX_ENDED = 1024
MAX_DETAIL = 240

What = Literal["queued", "blocked", "admitted", "chunk", "first_token", "preempted", "restarted", "finished"]


class Event(NamedTuple):
    """A moment, or several chunks of a prompt as one. Seconds since arrival, and of the steps the chunks ran in."""

    seconds: float
    what: What
    num_tokens: int
    detail: str = ""
    num_chunks: int = 0
    chunk_seconds: float = 0.0

    def moment(self) -> Moment:
        detail = self.detail
        if self.num_chunks == 1:
            detail = f"{self.chunk_seconds * 1e3:.1f} ms"
        elif self.num_chunks:
            each = self.chunk_seconds / self.num_chunks * 1e3
            detail = f"{self.num_chunks} chunks, {each:.1f} ms each"
        return Moment(self.seconds, self.what, self.num_tokens, detail)


class Tale:
    """The events of one output, at most `MAX_MOMENTS`: neighbouring chunks are merged, then the middle is left out."""

    __slots__ = ("_events", "_num_left_out")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._num_left_out = 0

    def add(self, event: Event) -> None:
        if len(self._events) >= MAX_MOMENTS:
            self._shorten()
        self._events.append(event)

    def moments(self) -> list[Moment]:
        moments = [event.moment() for event in self._events]
        if self._num_left_out:
            place = min(MAX_MOMENTS // 2, len(moments) - 1)
            after = moments[place]
            detail = f"{after.detail} ({self._num_left_out} moments before this one are left out)".lstrip()
            moments[place] = Moment(after.seconds, after.what, after.num_tokens, detail)
        return moments

    def _shorten(self) -> None:
        merged: list[Event] = []
        is_open = False
        for event in self._events:
            if event.num_chunks and is_open:
                before = merged[-1]
                merged[-1] = Event(
                    event.seconds,
                    "chunk",
                    before.num_tokens + event.num_tokens,
                    "",
                    before.num_chunks + event.num_chunks,
                    before.chunk_seconds + event.chunk_seconds,
                )
                is_open = False
            else:
                merged.append(event)
                is_open = bool(event.num_chunks)
        if len(merged) >= MAX_MOMENTS:
            del merged[MAX_MOMENTS // 2]
            self._num_left_out += 1
        self._events = merged


class Ended(NamedTuple):
    label: str
    arrival: int
    output_index: int
    usage: Usage
    tale: Tale


class Archive:
    """The outputs that ended last."""

    def __init__(self) -> None:
        self._ended: deque[Ended] = deque(maxlen=MAX_ENDED)

    def keep(self, ended: Ended) -> None:
        self._ended.append(ended)

    def newest(self, label: str) -> int:
        """The newest arrival among the requests of this label, or 0."""
        return max((ended.arrival for ended in self._ended if ended.label == label), default=0)

    def stories(self, arrival: int) -> list[Story]:
        """Of the ended outputs of one request."""
        return [
            Story(ended.output_index, "finished", 0, ended.usage, tuple(ended.tale.moments()))
            for ended in self._ended
            if ended.arrival == arrival
        ]
