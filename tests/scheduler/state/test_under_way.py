"""Prompts under way are shared: in the plan that writes them, before it is answered, and whatever becomes of it."""

import msgspec
import pytest

from quire.proto.messages.introspection import ExplainQuery, MetricsQuery
from quire.proto.transport.wire import unpack

COMMON = [*range(10, 26)]
"""Four blocks."""


def own(number, length=3):
    return [*COMMON, *range(100 * number, 100 * number + length)]


def table(plan, slot):
    (blocks,) = plan.admits[slot].tables
    return unpack(blocks).tolist()


def expect(e, *numbers):
    """All of them give the tokens of a run alone, and nothing is left over."""
    e.settle()
    assert {number: e.tokens[number, 0] for number in numbers} == {n: e.default_tokens(n, 4) for n in numbers}
    assert e.free_blocks == e.facts.num_blocks
    assert not e.core.group_epoch.memory.planned


def saved(e):
    return {one.name: one.value for one in e.ask(MetricsQuery(1)).figures}["prefix_planned_hits_tokens_total"]


def test_prompts_that_arrive_together_compute_what_they_share_once(engine):
    e = engine()
    for number in range(1, 4):
        e.submit(number, own(number))
    plan = e.plan()
    assert [row[1] for row in plan.rows] == [19, 3, 3]
    assert [admit.num_computed for admit in plan.admits.values()] == [0, 16, 16]
    assert table(plan, 0)[:4] == table(plan, 1)[:4] == table(plan, 2)[:4]
    (story,) = e.ask(ExplainQuery(1, "label-2")).stories
    text = "16 of 19 tokens are there, 5 blocks reserved; a step under way writes 16 of these tokens"
    assert story.moments[-1].detail == text
    expect(e, 1, 2, 3)
    assert saved(e) == 32
    assert [e.finishes[number, 0].usage.cached_tokens for number in (1, 2, 3)] == [0, 16, 16]
    e.submit(4, own(4))
    e.settle()
    assert (e.finishes[4, 0].usage.cached_tokens, saved(e)) == (16, 32), "proven blocks save nothing under way"


def test_who_comes_while_the_step_is_under_way_shares_it(engine):
    e = engine(world_size=2)
    e.submit(1, own(1))
    e.plan()
    e.submit(2, own(2))
    assert e.plan().admits[1].num_computed == 16
    expect(e, 1, 2)


def test_whole_prompts_are_shared_in_their_plan_too(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, max_model_len=64), enable_chunked_prefill=False)
    for number in range(1, 5):
        e.submit(number, own(number))
    assert e.plan().num_tokens == 19 + 3 * 3
    expect(e, 1, 2, 3, 4)


@pytest.mark.parametrize("other", [{"cache_salt": "b"}, {"adapter": "lion"}, {"prompt_logprobs": 0}])
def test_another_salt_or_adapter_or_who_needs_all_rows_shares_nothing_under_way(engine, other):
    e = engine()
    e.submit(1, own(1))
    e.submit(2, own(2), **other)
    assert [row[1] for row in e.plan().rows] == [19, 19]
    expect(e, 1, 2)
    assert saved(e) == 0


def test_what_computes_all_rows_lends_them(engine):
    e = engine()
    e.submit(1, own(1), prompt_logprobs=0)
    e.submit(2, own(2))
    assert [row[1] for row in e.plan().rows] == [19, 3]
    expect(e, 1, 2)


def test_every_kv_group_shares_as_far_as_the_widest_block(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, block_sizes=(4, 8)))
    e.submit(1, own(1, 6))
    e.submit(2, own(2, 6))
    plan = e.plan()
    assert plan.admits[1].num_computed == 16
    first, second = ([unpack(blocks).tolist() for blocks in plan.admits[slot].tables] for slot in (0, 1))
    assert (first[0][:4], first[1][:2]) == (second[0][:4], second[1][:2])
    expect(e, 1, 2)


def test_outputs_of_one_prompt_take_it_from_another_prompt_under_way(engine):
    e = engine()
    e.submit(1, own(1))
    e.submit(2, own(2), n=3)
    assert [row[1] for row in e.plan().rows] == [19, 3]
    forks = e.plan()
    assert [admit.num_computed for admit in forks.admits.values()] == [18, 18]
    e.settle()
    assert [e.tokens[2, index] for index in range(3)] == [e.default_tokens(2, 4, index) for index in range(3)]


@pytest.mark.parametrize("leaves", ["abort", "deadline"])
def test_the_owner_may_leave_while_its_step_is_under_way(engine, leaves):
    e = engine()
    e.submit(1, own(1), timeout_seconds=1 if leaves == "deadline" else 100)
    e.submit(2, own(2))
    first = e.plan()
    if leaves == "abort":
        e.abort(1)
    else:
        e.tick(2)
    e.submit(3, own(3))
    plan = e.plan()
    (admit,) = plan.admits.values()
    assert (admit.num_computed, unpack(admit.tables[0]).tolist()[:4]) == (16, table(first, 0)[:4])
    expect(e, 2, 3)


def test_the_owner_may_be_preempted_while_its_step_is_under_way(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=9), scheduling_policy="priority")
    e.submit(1, own(1, 1), max_tokens=4, priority=9)
    e.submit(2, own(2, 1), max_tokens=12)
    e.submit(3, [7] * 3, max_tokens=9)
    for _ in range(60):
        e.step()
    expect(e, 1)
    assert e.core.counters.num_preemptions
    assert (e.tokens[2, 0], e.tokens[3, 0]) == (e.default_tokens(2, 12), e.default_tokens(3, 9))


def test_tokens_that_are_not_known_are_not_listed(engine):
    e = engine()
    e.submit(1, 3, max_tokens=9)
    e.plan(), e.plan()
    e.abort(1)
    e.settle()
    assert not len(e.core.group_epoch.memory.index), "the fourth token was in flight"


def test_who_was_sent_back_leaves_nothing_in_the_cache(engine):
    e = engine()
    for number in (1, 2):
        e.submit(number, own(number, 9))
    e.plan()
    e.answer(bad_rows=(0, 1))
    assert not len(e.core.group_epoch.memory.index)
    expect(e, 2)


def test_a_dead_group_takes_what_was_under_way_with_it(engine):
    from quire.scheduler.state.events import GroupGone

    e = engine()
    for number in (1, 2):
        e.submit(number, own(number))
    e.plan()
    e.plans.clear()
    e.handle(GroupGone(e.epoch, "killed"))
    assert all(not sequence.borrowed for sequence in e.core.live_requests.waiting.sequences())
    e.start()
    assert [row[1] for row in e.plan().rows] == [19, 3], "nothing of the dead group's cache is there"
    expect(e, 1, 2)


def test_a_bad_row_sends_back_who_borrowed_of_it(engine):
    e = engine()
    for number in (1, 2, 3):
        e.submit(number, own(number), cache_salt="" if number < 3 else "other")
    e.plan(), e.plan()
    e.answer(bad_rows=(0,))
    assert (e.finishes[1, 0].error, e.reason(2)) == ("NUMERICAL", None)
    (waiting,) = e.core.live_requests.waiting.sequences()
    assert (waiting.request.number, waiting.tables, e.tokens[2, 0]) == (2, [], [])
    assert all(entry.step == 0 for entry in e.core.group_epoch.memory.index.entries())
    (admit,) = e.plan().admits.values()
    assert admit.num_computed == 0, "nothing of a bad row is read again"
    expect(e, 2, 3)


def test_who_borrowed_is_not_blamed_for_a_bad_row_until_it_ran_alone(engine):
    e = engine()
    for number in (1, 2):
        e.submit(number, own(number))
    e.plan()
    e.answer(bad_rows=(1,))
    assert not e.finishes
    e.submit(3, own(3))
    plan = e.plan()
    again = next(admit for admit in plan.admits.values() if admit.params.seed == 2)
    assert again.num_computed == 0
    (row,) = (row for row, (slot, *_) in enumerate(plan.rows) if slot == again.slot)
    e.answer(bad_rows=(row,))
    assert e.finishes[2, 0].error == "NUMERICAL"
    expect(e, 1, 3)


def test_outputs_that_forked_of_a_bad_row_run_again(engine):
    e = engine()
    e.submit(1, 10, n=3)
    e.plan(), e.plan()
    e.answer(bad_rows=(0,))
    assert {key: finish.error for key, finish in e.finishes.items()} == {(1, 0): "NUMERICAL"}
    e.settle()
    assert [e.tokens[1, index] for index in (1, 2)] == [e.default_tokens(1, 4, index) for index in (1, 2)]


def test_a_bad_row_whose_output_has_left_is_not_proven_and_sends_back_who_borrowed(engine):
    e = engine()
    for number in (1, 2):
        e.submit(number, own(number))
    e.plan()
    e.abort(1)
    e.answer(bad_rows=(0,))
    assert not len(e.core.group_epoch.memory.index)
    assert [one.request.number for one in e.core.live_requests.waiting.sequences()] == [2]
    expect(e, 2)
