"""Blocks: sharing, copies, the prefix cache at work, fences."""

import msgspec
import pytest

from quire.proto.messages.plans import StepResult
from quire.proto.transport.wire import unpack
from quire.scheduler.state.events import StepDone


def blocks(plan, slot):
    (table,) = plan.admits[slot].tables
    return unpack(table).tolist()


def test_a_second_request_reads_the_prefix_of_the_first(engine):
    e = engine()
    e.submit(1, 11)
    first = blocks(e.plan(), 0)
    e.settle()
    e.submit(2, 11)
    plan = e.plan()
    assert plan.admits[0].num_computed == 8
    assert blocks(plan, 0)[:2] == first[:2]
    assert plan.rows == [(0, 3, 1)]
    e.settle()
    assert e.finishes[2, 0].usage.cached_tokens == 8
    assert e.finishes[1, 0].usage.cached_tokens == 0


def test_at_least_one_token_is_left_to_run(engine):
    e = engine()
    e.submit(1, 8)
    e.settle()
    e.submit(2, 8)
    assert e.plan().admits[0].num_computed == 4


def test_generated_tokens_are_cached_too(engine):
    e = engine()
    e.submit(1, 6, max_tokens=7)
    e.settle()
    e.submit(2, [*range(10, 16), *e.tokens[1, 0], 5])
    assert e.plan().admits[0].num_computed == 12


def test_a_block_is_proven_only_after_every_rank_acknowledged(engine):
    e = engine(world_size=2)
    e.submit(1, 9, max_tokens=50)
    e.plan()
    entries = e.core.group_epoch.memory.index.entries()
    assert [entry.step for entry in entries] == [1, 1]
    e.answer(acks=False)
    assert [entry.step for entry in entries] == [1, 1]
    e.ack(1, 1)
    assert [entry.step for entry in entries] == [0, 0]


def test_a_generated_block_is_listed_only_after_every_rank_acknowledged(engine):
    e = engine(world_size=2)
    e.submit(1, 1, max_tokens=80)
    num_listed = 0
    while not num_listed:
        plan = e.plan()
        e.answer(acks=False)
        assert not len(e.core.group_epoch.memory.index)
        e.ack(1, plan.step)
        num_listed = len(e.core.group_epoch.memory.index)
    assert (num_listed, plan.step) == (16, 64)


def test_an_ended_outputs_blocks_are_published_when_their_fence_falls(engine):
    e = engine(world_size=2)
    e.submit(1, 9, max_tokens=1)
    e.plan()
    e.answer(acks=False)
    memory = e.core.group_epoch.memory
    assert e.reason(1) == "length"
    assert (len(memory.pool.fenced), [entry.step for entry in memory.index.entries()]) == (3, [1, 1])
    e.ack(1, 1)
    assert (len(memory.pool.fenced), len(memory.index), len(memory.pool.idle)) == (0, 2, 2)


@pytest.mark.parametrize("other", [{"cache_salt": "b"}, {"adapter": "lion"}])
def test_another_salt_or_adapter_shares_nothing(engine, other):
    e = engine()
    e.submit(1, 11, cache_salt="" if "adapter" in other else "a")
    e.settle()
    e.submit(2, 11, **other)
    assert e.plan().admits[0].num_computed == 0
    e.settle()
    e.submit(3, 11, **other)
    assert e.plan().admits[0].num_computed == 8


def test_the_cache_can_be_turned_off(engine):
    e = engine(enable_prefix_caching=False)
    e.submit(1, 11)
    e.settle()
    e.submit(2, 11)
    assert e.plan().admits[0].num_computed == 0
    assert len(e.core.group_epoch.memory.index) == 0


def test_prompt_logprobs_are_not_read_from_the_cache(engine):
    e = engine()
    e.submit(1, 11)
    e.settle()
    e.submit(2, 11, prompt_logprobs=0)
    assert e.plan().admits[0].num_computed == 0


def test_duplicates_are_not_replaced(engine):
    e = engine()
    e.submit(1, 9)
    e.submit(2, 9)
    tables = e.plan()
    e.settle()
    e.submit(3, 9)
    plan = e.plan()
    assert blocks(plan, next(iter(plan.admits)))[:2] == blocks(tables, 0)[:2]


def test_idle_blocks_are_evicted_oldest_and_deepest_first(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=6))
    e.submit(1, [1] * 8 + [2], max_tokens=1)
    e.settle()
    e.submit(2, [3] * 4 + [2], max_tokens=1)
    e.settle()
    assert len(e.core.group_epoch.memory.pool.idle) == 3
    # Four new blocks: three free ones, and the tail of the oldest prefix.
    e.submit(3, [7] * 16, max_tokens=1)
    e.plan()
    assert sum(not entry.step for entry in e.core.group_epoch.memory.index.entries()) == 2
    e.settle()
    e.submit(4, [1] * 8 + [2], max_tokens=1)
    assert e.plan().admits[0].num_computed in (0, 4)


def test_blocks_of_an_ended_output_are_fenced_while_a_step_may_touch_them(engine):
    e = engine()
    e.script[1, 0] = [2]
    e.submit(1, 3, ignore_eos=False, max_tokens=50)
    e.plan(), e.plan()
    e.answer()
    pool = e.core.group_epoch.memory.pool
    assert len(pool.fenced) == 1
    assert pool.available == e.facts.num_blocks - 1
    e.answer()
    assert len(pool.fenced) == 0
    assert pool.available == e.facts.num_blocks


def test_admission_waits_for_a_fence_and_goes_on_when_it_falls(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=2), world_size=2)
    e.script[1, 0] = [2]
    e.submit(1, 5, ignore_eos=False, max_tokens=4)
    e.submit(2, 8, max_tokens=1)
    e.plan(), e.plan()
    e.answer(acks=False)
    assert e.plan() is None
    e.answer(acks=False)
    assert e.plan() is None
    e.ack(1, 1)
    assert e.plan() is None
    e.ack(1, 2)
    assert list(e.plan().admits) == [0]
    e.settle()
    assert e.reason(2) == "length"


def test_siblings_share_the_prompt_and_copy_its_last_block(engine):
    e = engine()
    e.submit(1, 10, n=3)
    plan = e.plan()
    assert plan.rows == [(0, 10, 1)]
    parent = blocks(plan, 0)
    plan = e.plan()
    assert plan.rows == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    for slot in (1, 2):
        assert plan.admits[slot].num_computed == 9
        assert blocks(plan, slot)[:2] == parent[:2]
    assert plan.copies == [(parent[2], blocks(plan, slot)[2]) for slot in (1, 2)]
    assert [plan.admits[slot].output_index for slot in (1, 2)] == [1, 2]
    assert e.core.group_epoch.memory.pool.refs[parent[0]] == 3
    e.settle()
    for index in range(3):
        assert e.tokens[1, index] == e.default_tokens(1, 4, index)
    assert e.free_blocks == e.facts.num_blocks


def test_no_copy_is_needed_when_the_last_prompt_token_begins_a_block(engine):
    e = engine()
    e.submit(1, 9, n=2)
    e.plan()
    plan = e.plan()
    assert plan.copies == []
    assert plan.admits[1].num_computed == 8
    e.settle()


def test_siblings_wait_until_the_whole_prompt_is_planned(engine):
    e = engine(max_num_batched_tokens=8)
    e.submit(1, 20, n=2)
    assert list(e.plan().admits) == [0]
    assert not e.plan().admits
    e.answer()
    assert not e.plan().admits
    e.answer()
    assert list(e.plan().admits) == [1]
    e.settle()
    assert e.reason(1, 1) == "length"


def test_a_sibling_whose_parent_is_gone_finds_the_prompt_in_the_cache(engine):
    e = engine(max_num_seqs=1)
    e.submit(1, 10, n=2)
    e.settle()
    assert e.finishes[1, 1].usage.cached_tokens == 8
    assert e.tokens[1, 1] == e.default_tokens(1, 4, 1)


def test_only_the_first_output_is_asked_for_prompt_logprobs(engine):
    e = engine()
    e.submit(1, 10, n=2, prompt_logprobs=3)
    assert e.plan().admits[0].params.prompt_logprobs == 3
    assert e.plan().admits[1].params.prompt_logprobs == -1
    e.settle()


def test_what_is_not_a_number_leaves_the_cache_and_nobody_reads_it(engine):
    e = engine()
    e.submit(1, 9, max_tokens=50)
    e.submit(2, 9, max_tokens=50, cache_salt="other")
    e.plan(), e.plan()
    e.answer()
    assert len(e.core.group_epoch.memory.index) == 4
    e.answer(bad_rows=(0,))
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.error) == ("error", "NUMERICAL")
    assert e.reason(2) is None
    assert len(e.core.group_epoch.memory.index) == 2
    e.submit(3, 9)
    assert e.plan().admits[0].num_computed == 0
    e.settle()


def test_an_output_whose_grammar_is_stuck_ends_alone_and_its_cache_stays(engine):
    e = engine()
    e.submit(1, 9, max_tokens=50)
    e.submit(2, 9, max_tokens=50)
    e.plan(), e.plan()
    e.answer()
    kept = len(e.core.group_epoch.memory.index)
    e.answer(stuck_rows=(0,))
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.error) == ("error", "GRAMMAR_FAILED")
    assert e.reason(2) is None
    assert len(e.core.group_epoch.memory.index) == kept


def test_a_token_outside_the_vocabulary_ends_its_output_as_numerical(engine):
    e = engine()
    e.submit(1, 3)
    e.submit(2, 3)
    e.plan()
    plan = e.plans.popleft()
    e.handle(StepDone(StepResult(plan.epoch, plan.step, b"\xff\xff\xff\xff\x07\x00\x00\x00")))
    assert e.finishes[1, 0].error == "NUMERICAL"
    assert e.tokens == {(2, 0): [7]}


def test_a_cached_block_behind_a_fence_may_be_read_but_is_not_available(engine):
    e = engine()
    e.submit(1, 9, max_tokens=50)
    e.plan(), e.plan()
    e.answer()
    e.abort(1)
    pool = e.core.group_epoch.memory.pool
    fenced, available = len(pool.fenced), pool.available
    assert fenced == 3
    e.submit(2, [*range(10, 18), 99], max_tokens=2)
    (admit,) = e.plan().admits.values()
    assert admit.num_computed == 8
    assert len(pool.fenced) == fenced - 2, "the two full blocks have a reader again"
    assert pool.available == available - 1, "only the third one is new"
    e.settle()
    assert e.reason(2) == "length"
    assert not pool.fenced
    assert e.free_blocks == e.facts.num_blocks
