"""Decodes that carry drafts: who gets them, and how they count in plans, steps and lengths.

No worker drafts yet; here the slots' column of drafts is set by hand, as speculation will set it.
"""

import msgspec
import numpy as np
import pytest

from quire.proto.messages.plans import StepResult
from quire.proto.transport.wire import ints, plan_decoder, unpack
from quire.scheduler.state.events import StepDone


class Drafting:
    """An engine whose workers have three drafts for every decode, and accept `num_accepted` of each row's."""

    def __init__(self, engine, num_accepted=3, **config):
        self.engine, self.core = engine, engine.core
        self.num_accepted = num_accepted
        self.core.group_epoch.running.num_draft = np.full(self.core.config.max_num_seqs, 3)
        self.sent, self.in_flight = [], []

    def plan(self):
        """Rows (slot, tokens, drafts) of the next plan."""
        (send,) = self.core.plan(self.engine.now)
        message = plan_decoder().decode(*send.frames)
        slots, counts = unpack(message.slots).tolist(), unpack(message.num_tokens).tolist()
        drafts = unpack(message.num_draft).tolist() if message.num_draft else [0] * len(slots)
        self.in_flight.append((message, drafts))
        return list(zip(slots, counts, drafts, strict=True))

    def answer(self):
        message, drafts = self.in_flight.pop(0)
        drawing = [number for number, samples in zip(drafts, message.samples, strict=True) if samples]
        counts = [1 + min(number, self.num_accepted) for number in drawing]
        packed = ints(counts) if message.num_draft else b""
        result = StepResult(message.epoch, message.step, ints([100] * sum(counts)), packed)
        return self.engine.handle(StepDone(result))


@pytest.fixture
def drafting(engine):
    return lambda num_accepted=3, **config: Drafting(engine(**config), num_accepted)


def test_a_decode_carries_what_drafts_there_are_and_ends_at_its_length(drafting):
    d = drafting()
    d.engine.submit(1, 3, max_tokens=8)
    assert d.plan() == [(0, 3, 0)]
    assert d.plan() == [(0, 4, 3)]
    d.answer(), d.answer()
    assert len(d.engine.tokens[1, 0]) == 5
    assert d.plan() == [(0, 3, 2)], "only three tokens are left to draw"
    d.answer()
    assert (d.engine.reason(1), len(d.engine.tokens[1, 0])) == ("length", 8)


def test_a_plan_is_sent_behind_one_with_drafts_and_refused_ones_are_taken_back(drafting):
    d = drafting(num_accepted=0)
    d.engine.submit(1, 3, max_tokens=40)
    d.plan(), d.plan()
    d.answer()
    d.plan()
    running = d.core.group_epoch.running
    assert (running.num_known[0], running.num_tokens[0]) == (4, 12)
    d.answer()
    assert (running.num_known[0], running.num_tokens[0]) == (5, 9)
    d.answer()
    assert (running.num_known[0], running.num_tokens[0], running.num_computed[0]) == (6, 6, 5)


def test_drafts_take_the_tokens_that_prompts_leave(drafting):
    d = drafting(max_num_batched_tokens=8)
    d.engine.submit(1, 3, max_tokens=40)
    d.engine.submit(2, 3, max_tokens=40)
    d.plan()
    d.engine.submit(3, 4, max_tokens=40)
    assert d.plan() == [(1, 1, 0), (0, 3, 2), (2, 4, 0)]
    d.answer(), d.answer()
    (record,) = [record for record in d.core.step_log.records(1) if record.step == 2]
    assert (record.num_decodes, record.num_prefills, record.num_prefill_tokens) == (2, 1, 4)


def test_drafts_take_no_block_that_an_output_may_need_next(drafting, facts):
    d = drafting(facts=msgspec.structs.replace(facts, num_blocks=6), enable_prefix_caching=False)
    d.engine.submit(1, 6, max_tokens=12)
    d.plan()
    d.answer()
    assert d.plan() == [(0, 4, 3)], "three blocks are free, and one of them may be needed"
    d.answer()
    assert d.core.group_epoch.memory.available == 3
    d.engine.submit(2, 8, max_tokens=4)
    assert d.plan() == [(0, 2, 1), (1, 8, 0)], "its own blocks have room for one"


def test_drafts_leave_the_first_in_line_its_blocks(drafting, facts):
    """It is refused for the tokens of this step alone: its four blocks, and one more, are to be there in the next."""
    facts = msgspec.structs.replace(facts, num_blocks=8, max_model_len=16)
    d = drafting(facts=facts, enable_chunked_prefill=False, enable_prefix_caching=False, max_num_batched_tokens=16)
    for number in (1, 2):
        d.engine.submit(number, 3, max_tokens=13)
    assert d.plan() == [(0, 3, 0), (1, 3, 0)]
    d.answer()
    d.engine.submit(3, 15, max_tokens=1)
    assert d.plan() == [(0, 1, 0), (1, 1, 0)]
    assert d.core.group_epoch.memory.available == 6
