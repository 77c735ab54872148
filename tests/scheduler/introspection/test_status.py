"""All that can be seen of the engine at one instant."""

import msgspec
import numpy as np

from quire.proto.messages.introspection import (
    BLOCK_CACHED,
    BLOCK_FENCED,
    BLOCK_FREE,
    BLOCK_OWNER,
    BLOCK_SHARED,
    MAX_STATUS_BLOCKS,
    MAX_STATUS_OUTPUTS,
    StatusQuery,
)


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


def test_a_large_pool_and_a_long_queue_are_told_in_part(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=MAX_STATUS_BLOCKS + 500), max_num_seqs=8)
    for number in range(1, MAX_STATUS_OUTPUTS + 100):
        e.submit(number, 2, max_tokens=50)
    e.step()
    answer = status(e)
    assert len(codes(answer)) == MAX_STATUS_BLOCKS
    assert answer.load.num_blocks == MAX_STATUS_BLOCKS + 500
    assert [one.label for one in answer.outputs] == [f"label-{number}" for number in range(1, MAX_STATUS_OUTPUTS + 1)]


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
