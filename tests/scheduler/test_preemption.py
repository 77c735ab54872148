"""Preemption: the blocks run out."""

import msgspec
import pytest


@pytest.fixture
def small(engine, facts):
    def make(num_blocks, **config):
        return engine(facts=msgspec.structs.replace(facts, num_blocks=num_blocks), **config)

    return make


def run_until_preempted(e):
    for _ in range(100):
        e.step()
        if e.core.counters.num_preemptions:
            return
    raise AssertionError("nobody was preempted")


def test_the_newest_gives_way_and_no_token_is_lost_or_repeated(small):
    e = small(8)
    for number in range(3):
        e.submit(number, [number] * 6, max_tokens=20)
    run_until_preempted(e)
    (victim,) = e.core.live_requests.waiting.sequences()
    assert victim.request.number == 2
    e.settle()
    for number in range(3):
        assert e.tokens[number, 0] == e.default_tokens(number, 20)
    assert e.finishes[2, 0].usage.num_preemptions >= 1
    assert e.finishes[0, 0].usage.num_preemptions == 0
    assert e.free_blocks == 8


def test_the_lowest_priority_gives_way_even_if_it_came_first(small):
    e = small(8, scheduling_policy="priority")
    e.submit(0, [1] * 6, max_tokens=20, priority=5)
    e.submit(1, [2] * 6, max_tokens=20)
    e.submit(2, [3] * 6, max_tokens=20)
    run_until_preempted(e)
    assert [s.request.number for s in e.core.live_requests.waiting.sequences()] == [0]
    e.settle()
    assert {number: e.tokens[number, 0] for number in range(3)} == {n: e.default_tokens(n, 20) for n in range(3)}


def test_a_victims_place_in_the_queue_is_its_arrival(small):
    e = small(8, max_num_seqs=3)
    for number in range(3):
        e.submit(number, [number] * 6, max_tokens=20)
    e.submit(3, [9] * 2, max_tokens=2)
    run_until_preempted(e)
    num_sent = len(e.sent)
    e.settle()
    admitted = [admit.params.seed for plan in e.sent[num_sent:] for admit in plan.admits.values()]
    assert admitted.index(2) < admitted.index(3)


def test_a_row_waits_for_a_fence_instead_of_preempting(small):
    e = small(5)
    e.script[2, 0] = [50, 2]
    e.submit(1, [1] * 6, max_tokens=12)
    e.submit(2, [2] * 7, max_tokens=10, ignore_eos=False)
    e.plan(), e.plan()
    e.answer()
    e.plan()
    e.answer()
    assert e.reason(2) == "stop"
    assert (e.free_blocks, len(e.core.group_epoch.memory.pool.fenced)) == (0, 3)
    # Output 1 needs its third block now, and the fenced ones will do.
    assert e.plan() is None
    e.answer()
    assert e.plan().rows == [(0, 1, 1)]
    e.settle()
    assert e.core.counters.num_preemptions == 0
    assert e.tokens[1, 0] == e.default_tokens(1, 12)


def test_one_request_alone_always_gets_to_its_end(small):
    e = small(6)
    e.submit(1, 4, max_tokens=21)
    e.submit(2, 5, max_tokens=20)
    e.submit(3, 6, max_tokens=19)
    e.settle()
    assert {e.reason(number) for number in (1, 2, 3)} == {"length"}
    for number in (1, 2, 3):
        assert len(e.tokens[number, 0]) == {1: 21, 2: 20, 3: 19}[number]


@pytest.mark.parametrize("num_blocks", [5, 7, 9, 12])
def test_many_outputs_in_few_blocks_all_end_right(small, num_blocks):
    e = small(num_blocks, max_num_seqs=8, max_num_batched_tokens=16)
    for number in range(12):
        e.submit(number, 1 + number % 5, n=1 + number % 3, max_tokens=3 + number)
    e.settle()
    for number in range(12):
        for index in range(1 + number % 3):
            assert e.tokens[number, index] == e.default_tokens(number, 3 + number, index)


def test_a_preempted_output_may_be_aborted_or_run_out_of_time(small):
    e = small(8)
    for number in range(3):
        e.submit(number, [number] * 6, max_tokens=20, timeout_seconds=50)
    run_until_preempted(e)
    e.abort(2)
    assert e.reason(2) == "abort"
    assert e.finishes[2, 0].num_tokens == len(e.tokens[2, 0])
    run = len(e.tokens[0, 0])
    e.tick(60)
    assert e.reason(0) == "deadline"
    assert e.finishes[0, 0].num_tokens == run
    e.settle()
    assert e.free_blocks == 8


def test_prompt_logprobs_come_once_though_the_prompt_is_computed_twice(small):
    from quire.proto.messages.plans import RowLogprobs
    from quire.proto.messages.requests import PositionLogprobs

    e = small(6, max_num_batched_tokens=9)
    e.submit(1, [1] * 6, max_tokens=18)
    e.submit(2, [2] * 7, max_tokens=16, prompt_logprobs=0)
    seen = []
    for _ in range(200):
        while len(e.plans) < 2 and e.plan():
            pass
        if not e.plans:
            break
        plan = e.plans[0]
        columns = []
        for row, (slot, num_tokens, _) in enumerate(plan.rows):
            admit = plan.admits.get(slot)
            if admit is not None and admit.params.prompt_logprobs >= 0:
                entries = tuple(PositionLogprobs(2, -1.0, 1) for _ in range(min(num_tokens, 6)))
                columns.append(RowLogprobs(row, True, 1, entries))
        before = len(e.messages)
        e.answer(logprobs=tuple(columns))
        for message in e.messages[before:]:
            for column in message.outputs.logprobs:
                seen += range(column.first_position, column.first_position + len(column.entries))
    assert e.core.counters.num_preemptions
    assert seen == sorted(set(seen))
    assert seen[0] == 1
    assert e.tokens[2, 0] == e.default_tokens(2, 16)
