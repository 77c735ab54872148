"""The spans of the running sequences, by slot: which of a step's tokens are items', and where their rows lie."""

from dataclasses import dataclass

import numpy as np

from quire.proto.messages.media import NO_VIDEO, Grid, MediaSpan
from quire.proto.messages.plans import StepPlan
from quire.proto.transport.wire import unpack
from quire.worker.media.encoder_memory import EncoderMemory
from quire.worker.media.spans import Spans
from quire.worker.specs.vision_spec import VisionSpec
from quire.worker.tables.slot_table import Int64, PlanError, StepRows


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of a row of which some are an item's."""

    begin: int
    """Place of its first token among the step's."""
    positions: Int64
    """int64 [3, tokens]"""
    source: Int64
    """int64 [tokens]: the row of encoder memory that takes the token's place; -1: it keeps its own embedding."""
    visible: Int64
    """int64 [tokens]: the last index of the sequence that each sees, where the tokens of a span see each other."""


class SpanTable:
    """Kept by plan deltas. A slot is watched until all its spans are computed, and then costs nothing more."""

    def __init__(self, memory: EncoderMemory, vision: VisionSpec) -> None:
        self._memory = memory
        self._vision = vision
        self._spans: dict[int, Spans] = {}
        self._rows: dict[tuple[int, int], Int64] = {}
        """(slot, number of the span) -> rows of its tokens."""
        self._watched: set[int] = set()

    def apply(self, plan: StepPlan) -> dict[int, int]:
        """Releases, admissions, binds -> slots whose shift is 0 now. Raises `PlanError`."""
        cleared = {}
        for slot in unpack(plan.releases).tolist():
            if slot in self._spans:
                self._release(slot)
                cleared[slot] = 0
        for admit in plan.admits:
            if admit.spans:
                _check(admit.spans, admit.num_prompt, self._vision, f"admits: slot {admit.slot}")
                self._spans[admit.slot] = Spans(admit.spans, self._vision.merge_size)
                self._watched.add(admit.slot)
        for bind in plan.binds:
            where = f"binds: slot {bind.slot}, span {bind.index}"
            known = self._spans.get(bind.slot)
            if known is None or not 0 <= bind.index < len(known.spans):
                raise PlanError(f"{where}: was not admitted")
            num_rows = known.spans[bind.index].num_encoded
            self._rows[bind.slot, bind.index] = self._memory.row_numbers(bind.pages, num_rows, where)
        return cleared

    def chunks(self, rows: StepRows) -> tuple[list[Chunk], dict[int, int]]:
        """The step's chunks with items, and the slots whose shift changes with it: that of the text they run next.

        Raises `PlanError` for a token whose item was not bound.
        """
        if not self._watched:
            return [], {}
        ends = rows.counts.cumsum()
        chunks: list[Chunk] = []
        shifts: dict[int, int] = {}
        for row in np.flatnonzero(np.isin(rows.slots, list(self._watched))).tolist():
            slot, count = int(rows.slots[row]), int(rows.counts[row])
            begin = int(rows.computed[row])
            spans, end = self._spans[slot], begin + count
            touched = spans.within(begin, end)
            if touched:
                source, visible = self._source(slot, spans, touched, begin, end), spans.visible(begin, end)
                if self._vision.whole_spans and visible[-1] >= end:
                    raise PlanError(f"num_tokens: slot {slot} runs a part of its span {touched[-1]}, up to {end - 1}")
                chunks.append(Chunk(int(ends[row]) - count, spans.positions(begin, end), source, visible))
            shifts[slot] = spans.shift(end if touched else begin)
            if end >= spans.stop:
                self._watched.remove(slot)
        return chunks, shifts

    def _source(self, slot: int, spans: Spans, touched: range, begin: int, end: int) -> Int64:
        source: Int64 = np.full(end - begin, -1, np.int64)
        for number in touched:
            span = spans.spans[number]
            rows = self._rows.get((slot, number))
            if rows is None:
                raise PlanError(f"num_tokens: slot {slot} runs tokens of its span {number}, which no plan has bound")
            first, last = max(begin, span.start), min(end, span.stop)
            places = spans.rows(number, first, last)
            source[first - begin : last - begin] = np.where(places < 0, -1, rows[places])
        return source

    def _release(self, slot: int) -> None:
        for number in range(len(self._spans.pop(slot).spans)):
            self._rows.pop((slot, number), None)
        self._watched.discard(slot)


def _check(spans: tuple[MediaSpan, ...], num_prompt: int, vision: VisionSpec, where: str) -> None:
    stop = 0
    before: Grid = (0, 0, 0)
    for span in spans:
        if span.start < stop or span.stop > num_prompt:
            raise PlanError(f"{where}: spans lie behind each other in the prompt of {num_prompt} tokens")
        try:
            num_rows = vision.num_rows(span.grid)
        except ValueError as error:
            raise PlanError(f"{where}: {error}") from error
        if span.num_encoded != num_rows or span.num_breaks not in (0, span.grid[1] // vision.merge_size):
            raise PlanError(f"{where}: {span.num_tokens} tokens, {span.num_breaks} breaks for a grid of {span.grid}")
        if span.elapsed != NO_VIDEO and (span.elapsed < 0 or span.start != stop or span.grid[1:] != before[1:]):
            raise PlanError(f"{where}: an item of a video follows another of its size, got {span}")
        stop, before = span.stop, span.grid
