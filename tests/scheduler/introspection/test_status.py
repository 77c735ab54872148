"""All that can be seen of the engine at one instant."""

import msgspec
import numpy as np
import pytest

from quire.proto.messages.introspection import (
    BLOCK_CACHED,
    BLOCK_FENCED,
    BLOCK_FREE,
    BLOCK_OWNER,
    BLOCK_SHARED,
    MAX_STATUS_BLOCKS,
    MAX_STATUS_OUTPUTS,
    NOT_CACHED,
    EndedQuery,
    ExplainQuery,
    PrefixQuery,
    StatusQuery,
)
from quire.scheduler.state.request_log import MAX_ENDED


def status(e, after_step=-1):
    answer = e.ask(StatusQuery(5, after_step))
    assert answer.query == 5
    return answer


def codes(answer):
    return np.frombuffer(answer.blocks, "<u2")


def test_an_engine_without_workers_has_no_blocks(engine):
    answer = status(engine(ready=False))
    assert (answer.outputs, answer.blocks, answer.steps, answer.load.state) == ((), b"", (), "starting")


def test_running_outputs_come_before_waiting_ones_each_in_their_order(engine):
    e = engine(max_num_seqs=2, scheduling_policy="priority")
    for number, priority in ((1, 5), (2, 3), (3, 9), (4, 7), (5, 8)):
        e.submit(number, 4, priority=priority, max_tokens=20)
    e.step()
    answer = status(e)
    assert [(one.label, one.state) for one in answer.outputs] == [
        ("label-2", "running"),
        ("label-1", "running"),
        ("label-4", "waiting"),
        ("label-5", "waiting"),
        ("label-3", "waiting"),
    ]
    running, waiting = answer.outputs[0], answer.outputs[-1]
    assert (running.num_prompt, running.num_tokens, running.num_scheduled, running.num_blocks) == (4, 5, 5, 2)
    assert (waiting.num_tokens, waiting.num_scheduled, waiting.num_blocks) == (4, 0, 0)
    assert waiting.age_seconds == answer.now - 100.0


def test_each_block_is_drawn_as_what_it_is(engine):
    e = engine()
    e.submit(1, 17, max_tokens=1)
    e.settle()
    e.submit(2, 17, max_tokens=30)  # reads the four cached blocks
    e.step()
    e.submit(3, 17, max_tokens=30)  # and so does this one
    e.submit(4, 9, max_tokens=30, cache_salt="other")
    e.step()
    e.abort(4)  # while a step is in flight: fenced
    answer = status(e)
    drawn = codes(answer)
    assert len(drawn) == e.facts.num_blocks
    second, third = (e.core.live_requests.registry.find(b"f", number).sequences[0] for number in (2, 3))
    assert [one.label for one in answer.outputs] == ["label-2", "label-3"]
    assert (drawn[second.tables[0][:4]] == BLOCK_SHARED).all()
    assert (drawn[second.tables[0][4:]] == BLOCK_OWNER).all()
    assert (drawn[third.tables[0][4:]] == BLOCK_OWNER + 1).all()
    assert (drawn == BLOCK_FENCED).sum() == answer.load.fenced_blocks > 0
    assert (drawn <= BLOCK_CACHED).sum() == answer.load.free_blocks
    assert (drawn == BLOCK_FREE).any()
    e.abort(2, 3)
    e.settle()
    drawn = codes(status(e))
    assert (drawn == BLOCK_CACHED).sum() == status(e).load.cached_blocks > 0
    assert (drawn <= BLOCK_CACHED).all()


@pytest.mark.thorough
def test_a_large_pool_and_a_long_queue_are_told_in_part(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=MAX_STATUS_BLOCKS + 500), max_num_seqs=8)
    for number in range(1, MAX_STATUS_OUTPUTS + 100):
        e.submit(number, 2, max_tokens=50)
    e.step()
    answer = status(e)
    assert len(codes(answer)) == MAX_STATUS_BLOCKS
    assert answer.load.num_blocks == MAX_STATUS_BLOCKS + 500
    assert [one.label for one in answer.outputs] == [f"label-{number}" for number in range(1, MAX_STATUS_OUTPUTS + 1)]


def test_siblings_have_as_many_cached_tokens_as_their_stories_tell(engine):
    e = engine()
    e.submit(1, 10, n=3, max_tokens=9)
    for _ in range(3):
        e.step()
    cached = {one.output_index: one.cached_tokens for one in status(e).outputs}
    stories = e.ask(ExplainQuery(7, "label-1")).stories
    admitted = [next(moment for moment in story.moments if moment.what == "admitted") for story in stories]
    assert cached == {0: 0, 1: 9, 2: 9}
    assert [moment.num_tokens for moment in admitted] == [story.usage.cached_tokens for story in stories] == [0, 9, 9]


def test_who_wants_no_blocks_gets_none(engine):
    e = engine()
    e.submit(1, 10)
    e.step()
    answer = e.ask(StatusQuery(5, -1, False))
    assert (answer.blocks, len(answer.outputs)) == (b"", 1)


def test_what_ended_is_listed_and_only_once_to_whom_counts(engine):
    e = engine(max_num_seqs=2)
    for number, label in ((1, "same"), (2, "same"), (3, "other")):
        e.submit(number, 5 + number, label=label, max_tokens=2)
    e.settle()
    told = e.ask(EndedQuery(6))
    assert told.count == len(told.outputs) == status(e).load.num_finished == 3
    assert [(one.label, one.usage.prompt_tokens, one.reason) for one in told.outputs] == [
        ("same", 6, "length"), ("same", 7, "length"), ("other", 8, "length"),
    ]  # fmt: skip
    first, second, _ = told.outputs
    for one in (first, second):
        (story,) = e.ask(ExplainQuery(7, "same", one.arrival)).stories
        assert (story.state, story.usage) == ("finished", one.usage)
    assert e.ask(EndedQuery(6, 2)).outputs == told.outputs[2:]
    assert e.ask(EndedQuery(6, 3)).outputs == ()
    assert e.ask(EndedQuery(6, 99)).outputs == told.outputs, "the count is of another life"


def test_no_more_than_a_thousand_ended_outputs_are_kept(engine):
    e = engine()
    for number in range(1, MAX_ENDED + 50):
        e.submit(number, 2, max_tokens=1)
        e.settle()
    told = e.ask(EndedQuery(6))
    assert (told.count, len(told.outputs)) == (MAX_ENDED + 49, MAX_ENDED)
    assert told.outputs[-1].label == f"label-{MAX_ENDED + 49}"


def test_the_prefix_tree_has_shared_beginnings_once(engine):
    e = engine()
    assert set(tree(e)[0]) == {NOT_CACHED}
    shared = list(range(10, 22))  # three blocks
    e.submit(1, [*shared, *range(100, 108)], max_tokens=30)
    e.step()
    e.step()
    e.submit(2, [*shared, *range(200, 204)], max_tokens=30)
    e.submit(3, 9, cache_salt="other", max_tokens=30)
    for _ in range(6):
        e.step()
    parents, readers = tree(e)
    first, second, third = (
        e.core.live_requests.registry.find(b"f", number).sequences[0].tables[0] for number in (1, 2, 3)
    )
    assert first[:3] == second[:3]
    assert parents[first[:5]].tolist() == [first[0], *first[:4]]
    assert parents[second[3]] == second[2]
    assert parents[third[:2]].tolist() == [third[0], third[0]]
    assert readers[first[:5]].tolist() == [2, 2, 2, 1, 1]
    assert (parents != NOT_CACHED).sum() == status(e).load.cached_blocks


def tree(e):
    answer = e.ask(PrefixQuery(8))
    return np.frombuffer(answer.parents, "<i4"), np.frombuffer(answer.readers, "<u2")


def test_step_records_tell_what_ran_and_only_new_ones_are_sent_again(engine):
    e = engine(max_num_batched_tokens=16)
    e.submit(1, 20, max_tokens=3)
    e.settle()
    first, second, third, *_ = status(e).steps
    assert (first.num_decodes, first.num_prefills, first.num_prefill_tokens, first.num_admitted) == (0, 1, 16, 1)
    assert (second.num_decodes, second.num_prefills, second.num_prefill_tokens) == (0, 1, 4)
    assert (third.num_decodes, third.num_prefills) == (1, 0)
    assert [record.step for record in status(e, after_step=2).steps] == list(range(3, e.num_steps + 1))


def test_a_preemption_is_in_the_record_of_its_step(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=8))
    e.submit(1, 12, max_tokens=16)
    e.submit(2, 12, max_tokens=16)
    e.settle()
    answer = status(e)
    assert sum(record.num_preempted for record in answer.steps) == answer.load.num_preemptions > 0
