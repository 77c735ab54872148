"""The encoder memory: pages of rows that encoders made of items, for the running outputs whose prompts have them.

Entries with readers stay; of the others the one read longest ago is evicted when a new item needs pages. Only running
outputs read, and each lets go of an entry once its span is planned to the end. Unlike blocks of KV, pages need no
fence: workers run plans in order, and what a plan encodes behind all rows of the plans before it, so pages get a new
item while plans that read the old one are in flight.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from quire.proto.messages.media import Grid, Media, MediaFacts
from quire.scheduler.state.sequence import Sequence

Key = tuple[bytes, Grid]
"""Digest and grid of an item: no frontend's mistake makes an item as large as another of its digest."""


Run = tuple[int, int]
"""Adjacent pages: the first, and how many."""
_pack_run = struct.Struct("<ii").pack


class FreePages:
    """Pages that no entry has, as runs: what is given out is mostly one of them."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.runs: list[Run] = [(0, num_pages)]
        """In order, and between any two a page that is not free."""

    def __len__(self) -> int:
        return self.num_pages

    def __iter__(self) -> Iterator[int]:
        return (page for first, count in self.runs for page in range(first, first + count))

    def take(self, num_pages: int) -> list[Run]:
        """So many pages, which must be free: of the first run that holds them, or of the longest before that."""
        self.num_pages -= num_pages
        taken: list[Run] = []
        while num_pages:
            place = next((place for place, run in enumerate(self.runs) if run[1] >= num_pages), -1)
            if place < 0:
                place = max(range(len(self.runs)), key=lambda place: self.runs[place][1])
            first, count = self.runs[place]
            given = min(count, num_pages)
            taken.append((first, given))
            num_pages -= given
            self.runs[place : place + 1] = [(first + given, count - given)] if count > given else []
        return taken

    def give(self, runs: Iterable[Run]) -> None:
        """Pages that are free from now on."""
        for first, count in runs:
            self.num_pages += count
            place = bisect_left(self.runs, (first, count))
            if place < len(self.runs) and self.runs[place][0] == first + count:
                count += self.runs.pop(place)[1]
            if place and sum(self.runs[place - 1]) == first:
                place -= 1
                first, before = self.runs.pop(place)
                count += before
            self.runs.insert(place, (first, count))


class EncoderEntry:
    """One encoded item, or one that a plan in flight encodes."""

    __slots__ = ("bound", "is_proven", "key", "num_pages", "num_readers", "packed", "runs")

    def __init__(self, key: Key, num_pages: int, runs: list[Run]) -> None:
        self.key = key
        self.num_pages = num_pages
        self.runs = runs
        """The pages of its rows, in order."""
        self.packed = b"".join([_pack_run(*run) for run in runs])
        self.num_readers = 0
        """Spans of running outputs that hold it."""
        self.is_proven = False
        """A result has said that its file was there."""
        self.bound: set[tuple[int, int]] = set()
        """Until it is proven: (slot, generation) of every output that was given its rows."""


class EncoderMemory:
    """The pages of one worker group, each free or of one entry."""

    def __init__(self, facts: MediaFacts) -> None:
        self.facts = facts
        self.free = FreePages(facts.num_pages)
        self.entries: dict[Key, EncoderEntry] = {}
        self.idle: dict[Key, EncoderEntry] = {}
        """Those of `entries` without a reader, the one read longest ago first."""
        self.available = facts.num_pages
        """Pages that are free, or of an entry without a reader."""
        self.held: dict[Sequence, dict[int, EncoderEntry]] = {}
        """By output and index, the spans of which some tokens are planned and others not yet."""

    def find(self, item: Media) -> EncoderEntry | None:
        return self.entries.get(key_of(item))

    def make_room(self, num_pages: int) -> int:
        """Evict entries without a reader until so many pages, which must be available, are free. Returns how many."""
        num_evicted = 0
        while len(self.free) < num_pages:
            key = next(iter(self.idle))
            del self.entries[key]
            self.free.give(self.idle.pop(key).runs)
            num_evicted += 1
        return num_evicted

    def add(self, item: Media) -> EncoderEntry:
        """An entry for an item that has none, without a reader yet. Its pages must be free."""
        num_pages = self.facts.pages_for(item.span.num_encoded)
        entry = EncoderEntry(key_of(item), num_pages, self.free.take(num_pages))
        self.entries[entry.key] = self.idle[entry.key] = entry
        return entry

    def hold(self, entry: EncoderEntry, sequence: Sequence, index: int) -> None:
        """A running output reads the entry for its span of this index."""
        if not entry.num_readers:
            del self.idle[entry.key]
            self.available -= entry.num_pages
        entry.num_readers += 1
        self.held.setdefault(sequence, {})[index] = entry

    def let_go(self, sequence: Sequence, index: int) -> None:
        """The output needs the rows of this span no more."""
        spans = self.held[sequence]
        entry = spans.pop(index)
        if not spans:
            del self.held[sequence]
        entry.num_readers -= 1
        if not entry.num_readers:
            self.idle[entry.key] = entry
            self.available += entry.num_pages

    def let_go_all(self, sequence: Sequence) -> None:
        """The output leaves its slot, or one before it needs what it holds."""
        for index in list(self.held.get(sequence, ())):
            self.let_go(sequence, index)

    def drop(self, entry: EncoderEntry) -> None:
        """The file of an entry, which has no reader any more, was lost: its rows mean nothing."""
        if self.entries.get(entry.key) is entry:  # else its pages have another item already
            del self.entries[entry.key], self.idle[entry.key]
            self.free.give(entry.runs)


def key_of(item: Media) -> Key:
    return item.digest, item.span.grid
