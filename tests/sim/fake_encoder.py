"""The encoder memory of the fake worker group: pages of whose rows every reader knows which they should be."""

from collections.abc import Callable, Iterable

from fake_memory import Slot, demand

from quire.proto.messages.media import Bind, Encode, Media, MediaFacts
from quire.proto.messages.media import num_patches as patches_of
from quire.proto.messages.plans import StepPlan
from quire.proto.transport.wire import unpack

Row = tuple[Slot, int, int]
"""A slot, and the positions start..end-1 that its row runs."""


class FakeEncoder:
    """`media_of(seed)`: the items of a request. `is_lost(digest, step)`: that encode finds no file.

    `on_lost(seed, output index)` is called for whoever runs a row on what such an encode has left.
    """

    def __init__(
        self,
        facts: MediaFacts | None,
        max_patches: int = 0,
        media_of: Callable[[int], tuple[Media, ...]] = lambda seed: (),
        is_lost: Callable[[bytes, int], bool] = lambda digest, step: False,
        on_lost: Callable[[int, int], None] = lambda seed, index: None,
    ) -> None:
        self.facts = facts or MediaFacts((), 1, 1, 0)
        self.media_of = media_of
        self._max_patches = max_patches
        self._is_lost = is_lost
        self._on_lost = on_lost
        self._pages: list[tuple[bytes, int, bool] | None] = [None] * self.facts.num_pages
        """What each page holds: an item's digest, which page of it, and whether its file was there."""

    def admit(self, slot: Slot, spans: tuple[object, ...]) -> None:
        """A sequence enters a slot: nothing of it is bound."""
        slot.media = self.media_of(slot.params.seed)
        demand(spans == tuple(item.span for item in slot.media), f"{slot.name} is admitted with spans {spans}")

    def obey(self, plan: StepPlan, slots: dict[int, Slot]) -> tuple[int, ...]:
        """Encode and bind. Returns the numbers of the lost encodes. Raises `Broken`."""
        written: set[int] = set()
        num_patches = 0
        lost = tuple(number for number, one in enumerate(plan.encodes) if self._is_lost(one.digest, plan.step))
        for number, one in enumerate(plan.encodes):
            pages = pages_of(one.pages)
            num_patches += patches_of(one.grid)
            demand(set(pages) <= set(range(len(self._pages))), f"an encode to pages {pages} of {len(self._pages)}")
            demand(len({*pages, *written}) == len(pages) + len(written), f"pages {pages} are encoded to twice")
            demand(any(bind.pages == one.pages for bind in plan.binds), f"encode {number} is bound by nobody")
            written.update(pages)
            for place, page in enumerate(pages):
                self._pages[page] = one.digest, place, number not in lost
        fits = num_patches <= self._max_patches or len(plan.encodes) == 1
        demand(fits, f"{num_patches} patches in a step, at most {self._max_patches}")
        digests = [one.digest for one in plan.encodes]
        demand(len(set(digests)) == len(digests), "an image is encoded twice in a plan")
        for bind in plan.binds:
            self._bind(bind, slots)
        return lost

    def check_rows(self, plan: StepPlan, rows: Iterable[Row], slots: dict[int, Slot]) -> None:
        """A bind is of a span that the plan runs; a span whose tokens see each other is run to its end."""
        rows = list(rows)
        ends = {slot.name: (start, end) for slot, start, end in rows}
        for bind in plan.binds:
            slot = slots[bind.slot]
            span, (start, end) = slot.media[bind.index].span, ends.get(slot.name, (0, 0))
            demand(start < span.stop and span.start < end, f"{slot.name} runs nothing of span {bind.index}, now bound")
        for slot, _, end in rows if self.facts.whole_spans else ():
            cut = [one.span for one in slot.media if one.span.start < end < one.span.stop]
            demand(not cut, f"{slot.name} runs up to {end}, a part of {cut}")

    def has_rows(self, slot: Slot, start: int, end: int) -> bool:
        """Every token of a span that the row runs finds its image's row. False: its file was lost. Raises `Broken`."""
        is_whole = True
        for index, item in enumerate(slot.media):
            for position in range(max(start, item.span.start), min(end, item.span.stop)):
                place = (position - item.span.start) // self.facts.page_rows
                pages = slot.bound.get(index)
                demand(pages is not None, f"{slot.name} runs position {position} of span {index}, which is not bound")
                assert pages is not None
                page = self._pages[pages[place]]
                found = None if page is None else page[:2]
                demand(found == (item.digest, place), f"{slot.name} reads {found} for span {index}, page {place}")
                is_whole = is_whole and page is not None and page[2]
        if not is_whole:
            self._on_lost(*slot.name)
        return is_whole

    def _bind(self, bind: Bind, slots: dict[int, Slot]) -> None:
        demand(bind.slot in slots, f"bind of empty slot {bind.slot}")
        slot, pages = slots[bind.slot], pages_of(bind.pages)
        demand(0 <= bind.index < len(slot.media), f"{slot.name} has no span {bind.index}")
        item = slot.media[bind.index]
        needed = self.facts.pages_for(item.span.num_encoded)
        demand(len(pages) == needed, f"{slot.name}: span {bind.index} on {len(pages)} pages, not {needed}")
        slot.bound[bind.index] = pages


def pages_of(runs: bytes) -> list[int]:
    """Page by page."""
    return [page for first, count in unpack(runs, 2).tolist() for page in range(first, first + count)]


def in_words(encodes: Iterable[Encode], binds: Iterable[Bind]) -> str:
    """What a plan encodes and binds, for the log."""
    encoded = [(one.digest.hex()[:4], pages_of(one.pages)) for one in encodes]
    return f"encodes={encoded} binds={[(one.slot, one.index, pages_of(one.pages)) for one in binds]}"
