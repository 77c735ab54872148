"""A step's media: what the runner asks of the room, from a plan to the embeddings that the layers read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quire.proto.messages.plans import StepPlan
from quire.proto.transport.wire import Int32
from quire.worker.batch import Embedded
from quire.worker.media.media_encoder import Encoded, MediaEncoder
from quire.worker.media.span_table import Chunk, SpanTable
from quire.worker.tables.slot_table import Int64, StepRows
from quire.worker.tables.upload import Upload


@dataclass(frozen=True, slots=True)
class StepMedia:
    """The media of one step; its tensors mean something once the upload is queued."""

    embedded: Embedded | None = None
    """None: every token has its own embedding, and its position by its slot's shift."""
    positions: tuple[tuple[int, torch.Tensor], ...] = ()
    """(begin among the step's tokens, int64 [3, tokens]): positions that no shift gives."""
    shifts: tuple[torch.Tensor, torch.Tensor] | None = None
    """Slots, and their shift from this step on: int64 [n] both."""
    last_visible: torch.Tensor | None = None
    """int32 [T]: see `PagedBatch`; None: no token sees one behind it."""


NO_MEDIA = StepMedia()


class MediaInputs:
    """`prepare` and then, once the upload is queued, `run`, for each plan in order."""

    def __init__(self, encoder: MediaEncoder, shifts: torch.Tensor | None, two_way_prompts: bool = False) -> None:
        """`shifts` int64 [slots]: what `prepare_inputs` adds to an index for its position; None: nothing.
        `two_way_prompts`: all tokens of a prompt see each other."""
        self._two_way = two_way_prompts
        self._num_prompt: dict[int, int] = {}
        """Slot -> tokens of its prompt, where they see each other."""
        self._encoder = encoder
        self._shifts = shifts
        self._table = SpanTable(encoder.memory, encoder.vision)

    def prepare(self, plan: StepPlan, rows: StepRows, upload: Upload) -> StepMedia:
        """Apply the plan, and find the rows' media. Raises `PlanError`."""
        cleared = self._table.apply(plan)
        chunks, changed = self._table.chunks(rows)
        shifts = {} if self._shifts is None else cleared | changed
        ends = self._ends(plan, rows)
        if not chunks and not shifts and ends is None:
            return NO_MEDIA
        moved = None
        if shifts:
            slots, values = (upload.put(np.array(list(column), np.int64)) for column in (shifts, shifts.values()))
            moved = slots, values
        visible = None
        if self._encoder.vision.whole_spans and (chunks or ends is not None):
            visible = upload.put(_last_visible(rows, chunks, ends))
        if not chunks:
            return StepMedia(shifts=moved, last_visible=visible)
        source = np.full(rows.num_tokens, -1, np.int64)
        for chunk in chunks:
            source[chunk.begin : chunk.begin + len(chunk.source)] = chunk.source
        positions = () if self._shifts is None else tuple((one.begin, upload.put(one.positions)) for one in chunks)
        return StepMedia(Embedded(upload.put(source), self._encoder.memory.rows), positions, moved, visible)

    def _ends(self, plan: StepPlan, rows: StepRows) -> Int64 | None:
        """int64 [R]: tokens of each row's prompt; None: no row runs any of one whose tokens see each other."""
        if not self._two_way:
            return None
        self._num_prompt |= {admit.slot: admit.num_prompt for admit in plan.admits}
        ends = np.array([self._num_prompt[slot] for slot in rows.slots.tolist()], np.int64)
        return ends if (rows.computed < ends).any() else None

    def run(self, plan: StepPlan, media: StepMedia) -> Encoded | None:
        """Queue the encodes, None where the plan has none, and the shifts."""
        if media.shifts is not None:
            assert self._shifts is not None
            slots, values = media.shifts
            self._shifts.index_copy_(0, slots, values)
        return self._encoder.encode(plan.encodes) if plan.encodes else None


def _last_visible(rows: StepRows, chunks: Sequence[Chunk], ends: Int64 | None) -> Int32:
    """int32 [T]: the last index of its sequence that each token of the step sees. `ends`: see `_ends`."""
    before = rows.counts.cumsum() - rows.counts
    own = np.arange(rows.num_tokens) + np.repeat(rows.computed - before, rows.counts)
    for chunk in chunks:
        own[chunk.begin : chunk.begin + len(chunk.visible)] = chunk.visible
    if ends is not None:
        last = np.repeat(ends, rows.counts) - 1
        own = np.maximum(own, last)  # behind its prompt a token sees up to itself
    return own.astype(np.int32)
