"""A worker that drafts, although none of ours does: the double of speculation, whose output form takes its place.

Its drafts are random, and every token is the model's own draw, so a text must not depend on them. All of it is queued
on the device: how many drafts of a step are accepted, the host learns when the step is collected.
"""

import numpy as np
import torch

from quire.kernels.sampling.sample import sample
from quire.proto.transport.wire import ints
from quire.worker.sampling.output import StepOutput
from quire.worker.tables.sampling_table import FloatColumn, IntColumn

MOST = 3
"""Drafts of a row at most."""


class DraftingSampler:
    """The output form of a runner, in the place of its `Sampler`. `texts`: slot -> prompt and tokens of a run alone.

    A draft is the right token of its text with probability `acceptance`.
    """

    def __init__(self, runner, texts, acceptance, seed):
        self._slots, self._head = runner._slot_table, runner._output._head
        self._texts = torch.zeros_like(self._slots.tokens)
        for slot, text in texts.items():
            self._texts[slot, : len(text)] = torch.tensor(text)
        self._acceptance = acceptance
        self._generator = torch.Generator().manual_seed(seed)

    def prepare(self, plan, rows, upload):
        drafts = np.zeros_like(rows.counts) if rows.num_draft is None else rows.num_draft
        chosen = rows.sampling
        columns = rows.slots[chosen], drafts[chosen], np.cumsum(rows.counts)[chosen] - 1
        return upload.put(np.array(columns)), rows.num_draft is not None

    def run(self, metadata, hidden, stored):
        (slots, drafts, last), has_drafts = metadata
        table, steps = self._slots.sampling, torch.arange(MOST + 1)
        places = torch.minimum((last - drafts)[:, None] + steps, last[:, None])
        logits = self._head.logits(hidden.index_select(0, places.flatten()))
        known = self._slots.known.index_select(0, slots)
        positions = known[:, None] + steps
        every = slots.repeat_interleave(MOST + 1)
        temperature = table.floats[every, FloatColumn.TEMPERATURE]
        floor = torch.full_like(temperature, -torch.inf)
        seeds, outputs = (table.ints[every, column] for column in (IntColumn.SEED, IntColumn.OUTPUT_INDEX))
        drawn = sample(logits, floor, temperature, seeds, positions.flatten(), outputs).view(-1, MOST + 1)
        before = self._slots.tokens[slots[:, None], positions[:, :MOST]]
        accepted = (drawn[:, :MOST] == before) & (steps[:MOST] < drafts[:, None])
        counts = 1 + accepted.long().cumprod(1).sum(1)
        self._slots.tokens[slots[:, None], positions] = drawn.int()
        self._slots.known.index_copy_(0, slots, known + counts)
        self._draft(slots, known + counts)
        stored()
        finite = logits.isfinite().view(len(slots), -1).all(1)
        # a copy of its own: the next step's upload lies over this one's
        return StepOutput(finite, drawn if has_drafts else drawn[:, 0].clone(), counts if has_drafts else None)

    def on_launched(self, metadata, output, mark):
        return ()

    def _draft(self, slots, known):
        """Guesses behind the known tokens; whoever runs them accepts what it draws itself."""
        places = slots[:, None], known[:, None] + torch.arange(MOST)
        right, size = self._texts[places], (len(slots), MOST)
        wrong = (right + torch.randint(1, 300, size, generator=self._generator, dtype=torch.int32)) % 320
        is_right = torch.rand(size, generator=self._generator) < self._acceptance
        self._slots.tokens[places] = torch.where(is_right, right, wrong)


class DraftingHand:
    """Writes plans as the scheduler does: counts of its scribe are upper bounds until a step was collected."""

    def __init__(self, driver, rng):
        self._runner, self._scribe, self._rng = driver.runner, driver.scribe, rng
        self._in_flight = []
        self.tokens = {}
        """Slot -> what its sequence drew so far, as far as collected."""

    def launch(self, slots, drafts=True):
        """A decode of each of these slots, with drafts at random."""
        counts = {slot: self._rng.randint(0, MOST) if drafts else 0 for slot in slots}
        order = sorted(slots, key=lambda slot: counts[slot] > 0)
        rows = [(slot, 1 + counts[slot]) for slot in order]
        column = [counts[slot] for slot in order]
        packed = ints(column) if any(column) else b""
        plan, _ = self._scribe.plan(rows, samples=b"\1" * len(rows), num_draft=packed)
        for slot in order:
            self._scribe.known[slot] = self._scribe.computed[slot] + 1
        self._in_flight.append((self._runner.launch(plan), order, column))

    def collect(self):
        """The oldest step's result; what it refused is taken back."""
        step, order, column = self._in_flight.pop(0)
        result = self._runner.collect(step)
        assert not result.bad_rows
        drawn = iter(np.frombuffer(result.token_ids, np.int32).tolist())
        counts = np.frombuffer(result.counts, np.int32).tolist() or [1] * len(order)
        for slot, number, count in zip(order, column, counts, strict=True):
            assert 1 <= count <= number + 1
            if slot in self.tokens:
                self.tokens[slot] += [next(drawn) for _ in range(count)]
                self._scribe.computed[slot] -= number + 1 - count
                self._scribe.known[slot] -= number + 1 - count
            else:
                [next(drawn) for _ in range(count)]
        assert next(drawn, None) is None
        return counts

    @property
    def num_in_flight(self):
        return len(self._in_flight)
