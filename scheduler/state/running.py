"""The running set as arrays indexed by slot, so that a steady decode step costs a few array operations.

Per slot, in tokens: num_prompt <= num_known <= num_tokens <= limit, and num_computed <= num_scheduled < num_tokens.
Where plans in flight carry drafts, num_scheduled and num_tokens are upper bounds: all drafts count as accepted.
"""

import numpy as np
import numpy.typing as npt

from quire.proto.transport.wire import Int32
from quire.scheduler.state.sequence import Sequence

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Running:
    """Slots and the counts of the outputs in them. Shapes: [num_slots], history [num_slots, max_model_len]."""

    def __init__(self, num_slots: int, max_model_len: int, num_groups: int) -> None:
        self.num_slots = num_slots
        self.num_active = 0
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.active: Mask = np.zeros(num_slots, bool)
        self.generation = _zeros(num_slots)
        """Number of outputs that have left the slot: a row planned for an earlier one is dropped."""
        self.frontend = _zeros(num_slots)
        self.number = _zeros(num_slots)
        self.output_index = _zeros(num_slots)
        self.num_prompt = _zeros(num_slots)
        self.num_known = _zeros(num_slots)
        """Tokens whose values are known: prompt and emitted."""
        self.num_tokens = _zeros(num_slots)
        """Known tokens, and those that the plans in flight will draw."""
        self.num_scheduled = _zeros(num_slots)
        """Tokens whose KV the plans sent so far write."""
        self.num_draft: Int64 | None = None
        """Draft tokens that the workers have for the next decode of each slot; None: they draft nothing."""
        self.num_computed = _zeros(num_slots)
        """Tokens whose KV was written by steps with a result, or was shared when the output entered."""
        self.span_end = _zeros(num_slots)
        """End of the last span of an item in the prompt; 0: it has none."""
        self.limit = _zeros(num_slots)
        self.stop_from = _zeros(num_slots)
        """Number of tokens before which no stop token ends the output."""
        self.num_blocks: Int64 = np.zeros((num_groups, num_slots), np.int64)
        """By KV group, blocks in its tables: [groups, num_slots]."""
        self.num_behind: Int64 = np.zeros((num_groups, num_slots), np.int64)
        """By KV group, how many of these were given back, as windows have passed them: [groups, num_slots]."""
        self.publish_at = _zeros(num_slots)
        """Tokens whose KV every rank has written when more blocks of the output are listed in the prefix cache."""
        self.stops_at_eos: Mask = np.zeros(num_slots, bool)
        self.has_stop_ids: Mask = np.zeros(num_slots, bool)
        self.awaits_first: Mask = np.zeros(num_slots, bool)
        self.history: Int32 = np.zeros((num_slots, max_model_len), np.int32)
        """Known tokens. Memory is used only for the pages that a slot has written."""
        self.released: list[int] = []
        """Slots that became free since the last plan."""
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free)

    @property
    def num_partial(self) -> int:
        """Number of outputs with more tokens to schedule than the one that draws the next: prompts planned in part."""
        return int(np.count_nonzero(self.active & (self.num_tokens - self.num_scheduled > 1)))

    def live(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence is not None]

    def at(self, slot: int) -> Sequence:
        sequence = self.sequences[slot]
        if sequence is None:
            raise LookupError(f"slot {slot} is empty")
        return sequence

    def enter(self, sequence: Sequence, num_computed: int, publish_at: int) -> int:
        """Put a waiting output, whose blocks are reserved, into a free slot. Returns the slot."""
        request, slot = sequence.request, self._free.pop()
        known = sequence.num_known
        sequence.move("running")
        sequence.slot = slot
        self.sequences[slot] = sequence
        self.num_active += 1
        self.active[slot] = True
        self.frontend[slot] = request.frontend.index
        self.number[slot] = request.number
        self.output_index[slot] = sequence.output_index
        self.num_prompt[slot] = request.num_prompt
        self.num_known[slot] = self.num_tokens[slot] = known
        self.num_scheduled[slot] = self.num_computed[slot] = num_computed
        self.span_end[slot] = request.placeholders[-1].stop if request.placeholders else 0
        self.limit[slot] = request.limit
        self.stop_from[slot] = request.stop_from
        self.count_blocks(sequence)
        self.publish_at[slot] = publish_at
        self.stops_at_eos[slot] = not request.params.ignore_eos
        self.has_stop_ids[slot] = bool(request.stop_ids)
        self.awaits_first[slot] = sequence.first_token_at < 0
        self.history[slot, :known] = sequence.tokens
        return slot

    def count_blocks(self, sequence: Sequence) -> None:
        """Its tables have changed."""
        self.num_blocks[:, sequence.slot] = [len(table) for table in sequence.tables]
        self.num_behind[:, sequence.slot] = sequence.num_behind

    def leave(self, sequence: Sequence, keep_tokens: bool) -> None:
        """Free the slot. With `keep_tokens` the output keeps its tokens, to run again."""
        slot = sequence.slot
        sequence.num_known = int(self.num_known[slot])
        if keep_tokens:
            sequence.tokens = self.history[slot, : sequence.num_known].copy()
        sequence.slot = -1
        self.sequences[slot] = None
        self.num_active -= 1
        self.active[slot] = False
        self.generation[slot] += 1
        self.released.append(slot)
        self._free.append(slot)

    def append(self, slots: Int64, tokens: Int32) -> Int64:
        """Add one known token in each of these slots. Returns the new counts."""
        before = self.num_known[slots]
        self.history[slots, before] = tokens
        after: Int64 = before + 1
        self.num_known[slots] = after
        return after

    def correct(self, refused: Int64) -> None:
        """Take back what was planned and not accepted: `refused` drafts of each slot."""
        self.num_tokens -= refused
        self.num_scheduled -= refused


def _zeros(num_slots: int) -> Int64:
    return np.zeros(num_slots, np.int64)
