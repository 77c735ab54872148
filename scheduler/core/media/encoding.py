"""The items of each plan: which are encoded, which spans are bound to their pages, and how far prompts run.

Where the tokens of a span see each other, they run in one step, but for those that are cached already: queries of the
others then see keys that were computed when all of it ran. A token of a span runs only when the rows of the span's item
are in the encoder memory or are made by the same plan. Where patches or pages do not suffice, the prompt is cut right
before the span. An item with more patches than the budget is encoded by a step that encodes nothing else; none has more
pages than the memory (admission), and an output may take pages of those after it in order, which encode again if they
must: so the first in order always goes on.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import Final, Literal

from quire.proto.messages.media import Bind, Encode, Media
from quire.proto.prefix_key import Placeholders
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.state.counters import Counters
from quire.scheduler.state.encoder_memory import EncoderEntry, EncoderMemory, Key, key_of
from quire.scheduler.state.epoch import Epoch
from quire.scheduler.state.in_flight import PlannedStep
from quire.scheduler.state.sequence import Request, Sequence

Shortage = Literal["encoder_budget", "encoder_memory"]
STALLED: Final = "waits for encoder memory: what others hold leaves too little of it"

_stop = attrgetter("stop")


class Encoding:
    """Encodes and binds of one plan at a time. Prompts without items cost nothing here."""

    def __init__(self, config: SchedulerConfig, group_epoch: Epoch, counters: Counters) -> None:
        self._max_patches = config.max_num_encoder_patches
        self._running = group_epoch.running
        self._memory = group_epoch.encoder_memory
        self.keeps_whole = self._memory is not None and self._memory.facts.whole_spans
        """The tokens of a span see each other."""
        self._counters = counters
        self._plan: PlannedStep
        self._now = 0.0
        self._num_patches = 0
        """Patches that this plan may still encode."""
        self._ran: dict[Sequence, int] = {}
        """Outputs with items that this plan runs -> the end of what it runs of them."""

    def open(self, plan: PlannedStep, now: float) -> None:
        """Begin with a plan."""
        self._plan, self._now, self._num_patches = plan, now, self._max_patches

    def close(self) -> None:
        """The plan is complete: outputs let go of the spans that it runs to the end."""
        for sequence, end in self._ran.items():
            memory, placeholders = self._of(sequence), sequence.request.placeholders
            for index in [index for index in memory.held.get(sequence, ()) if placeholders[index].stop <= end]:
                memory.let_go(sequence, index)
        self._ran.clear()

    def least(self, sequence: Sequence, start: int) -> int:
        """Tokens of an output that must run together, from `start` on: those of a span that see each other, or one."""
        span = self._span_at(sequence.request, start)
        return 1 if span is None else span.stop - start

    def whole(self, sequence: Sequence, start: int, stop: int) -> int:
        """The place up to which tokens from `start` on may run, at most `stop`, so that no such span runs in parts."""
        span = self._span_at(sequence.request, stop - 1) if stop > start else None
        return stop if span is None or span.stop == stop else max(start, span.start)

    def _span_at(self, request: Request, position: int) -> Placeholders | None:
        """The span of tokens that see each other in which this one stands."""
        if not self.keeps_whole or not request.media:
            return None
        index = bisect_right(request.placeholders, position, key=_stop)
        if index == len(request.placeholders) or request.placeholders[index].start > position:
            return None
        return request.placeholders[index]

    def shortage(self, sequence: Sequence, start: int, stop: int) -> Shortage | None:
        """The cause that keeps this plan from running the tokens start..stop-1 of an output, or None."""
        if not sequence.request.media:
            return None
        _, end, shortage = self._fit(sequence, start, stop)
        return shortage if end < stop else None

    def reach(self, sequence: Sequence, start: int, stop: int) -> int:
        """Let this plan run tokens of a running output from `start` on, at most to `stop`. Returns to where it can."""
        if not sequence.request.media:
            return stop
        spans, end, shortage = self._fit(sequence, start, stop)
        memory, media = self._of(sequence), sequence.request.media
        new: list[int] = []
        for index in spans:  # before any page is given away
            entry = memory.find(media[index])
            if entry is None:
                new.append(index)
            else:
                self._bind(sequence, index, entry)
                self._counters.encoder_hits += 1
        for index in new:
            self._bind(sequence, index, memory.find(media[index]) or self._encode(media[index], memory))
        self._counters.encoder_queries += len(spans)
        if end > start:
            self._ran[sequence] = end
        elif shortage == "encoder_memory" and sequence.stalled_at != start:
            sequence.stalled_at = start
            sequence.note(self._now, "blocked", start, f"it {STALLED}")
        return end

    def _fit(self, sequence: Sequence, start: int, stop: int) -> tuple[list[int], int, Shortage | None]:
        """The spans to bind for the tokens from `start` on, the place up to which this plan can run them, at most
        `stop`, and what keeps it from going on. Those after the output may lose what they hold.
        """
        request, memory = sequence.request, self._of(sequence)
        held = memory.held.get(sequence, ())
        spans: list[int] = []
        items: dict[Key, Media] = {}
        num_patches = num_pages = 0
        for index in _touched(request, start, stop):
            if index in held:
                continue
            item = request.media[index]
            key = key_of(item)
            if key not in items:
                num_patches += 0 if key in memory.entries else item.span.num_patches
                num_pages += _pages(memory, key, item)
                shortage: Shortage | None = "encoder_budget" if num_patches > self._num_patches else None
                if num_patches == item.span.num_patches and self._num_patches == self._max_patches:
                    shortage = None  # the first item of a step, larger than the budget or not
                while shortage is None and num_pages > memory.available:
                    if self._take_back(sequence, memory):
                        num_pages = _pages(memory, key, item) + sum(_pages(memory, *one) for one in items.items())
                    else:
                        shortage = "encoder_memory"
                if shortage is not None:
                    return spans, max(start, item.span.start), shortage
                items[key] = item
            spans.append(index)
        return spans, stop, None

    def _take_back(self, sequence: Sequence, memory: EncoderMemory) -> bool:
        """Let the last output in order that holds pages, is after this one and not in this plan let go of them. What is
        not evicted it finds again.
        """
        behind = [one for one in memory.held if one.order > sequence.order and one not in self._ran]
        if behind:
            memory.let_go_all(max(behind, key=_order))
        return bool(behind)

    def _encode(self, item: Media, memory: EncoderMemory) -> EncoderEntry:
        self._counters.encoder_evictions += memory.make_room(memory.facts.pages_for(item.span.num_encoded))
        entry = memory.add(item)
        self._plan.encodes.append(Encode(item.digest, item.span.grid, item.folder, entry.packed))
        self._plan.encoded.append(entry)
        self._num_patches -= item.span.num_patches
        return entry

    def _bind(self, sequence: Sequence, index: int, entry: EncoderEntry) -> None:
        slot = sequence.slot
        self._of(sequence).hold(entry, sequence, index)
        if not entry.is_proven:
            entry.bound.add((slot, int(self._running.generation[slot])))
        self._plan.binds.append(Bind(slot, index, entry.packed))

    def _of(self, sequence: Sequence) -> EncoderMemory:
        assert self._memory is not None, f"{sequence.request.label!r} has items, the model reads text alone"
        return self._memory


def _touched(request: Request, start: int, stop: int) -> range:
    """Indexes of the spans with tokens among start..stop-1."""
    spans = request.placeholders
    first = last = bisect_right(spans, start, key=_stop)
    while last < len(spans) and spans[last].start < stop:
        last += 1
    return range(first, last)


def _pages(memory: EncoderMemory, key: Key, item: Media) -> int:
    """Pages that are not available any more once the item is held."""
    entry = memory.entries.get(key)
    if entry is None:
        return memory.facts.pages_for(item.span.num_encoded)
    return 0 if entry.num_readers else entry.num_pages


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order
