"""Prompts that share a step: half by age, half by length, and what that promises to short and to long ones."""

import math

import msgspec
import pytest

from quire.proto.messages.introspection import ExplainQuery, MetricsQuery

BUDGET = 256
LONG, SHORT = 500, 4


@pytest.fixture
def roomy(engine, facts):
    """Slots and blocks for everything; a step runs 256 tokens."""

    def make(num_blocks=8192, max_model_len=1024, **config):
        room = msgspec.structs.replace(facts, num_blocks=num_blocks, max_model_len=max_model_len)
        return engine(facts=room, **{"max_num_seqs": 64, "max_num_batched_tokens": BUDGET, **config})

    return make


def own(number, length):
    """A prompt that shares nothing with the others."""
    return [3 + number % 900, *(5 + place % 900 for place in range(length - 1))]


def steps_to_first_token(e, numbers, most=10_000):
    """number -> results that came until its first token, from now."""
    waited = {}
    for step in range(1, most):
        if not e.step():
            break
        waited |= {number: step for number in numbers if number not in waited and e.tokens[number, 0]}
        if len(waited) == len(numbers):
            return waited
    raise AssertionError(f"only {sorted(waited)} of {numbers} got a token")


def test_a_short_prompt_is_not_behind_all_long_ones(roomy):
    e = roomy()
    for number in range(24):
        e.submit(number, own(number, LONG), max_tokens=1)
    e.step()
    waited = {}
    for number in range(100, 130):
        e.submit(number, own(number, SHORT), max_tokens=1)
        waited |= steps_to_first_token(e, [number])
    # one step is running and one is sent when it comes; its own is the third
    assert max(waited.values()) <= 3


def test_long_prompts_are_no_later_than_twice_and_all_tokens_take_no_step_more(roomy):
    def run(num_short):
        e = roomy()
        for number in range(24):
            e.submit(number, own(number, LONG), max_tokens=1)
        e.step()
        for number in range(100, 100 + num_short):
            e.submit(number, own(number, SHORT), max_tokens=1)
        waited = steps_to_first_token(e, [*range(24)])
        assert e.num_steps == math.ceil((24 * LONG + num_short * SHORT) / BUDGET)
        return waited

    alone, beside = run(0), run(40)
    assert alone == {number: math.ceil((number + 1) * LONG / BUDGET) - 1 or 1 for number in range(24)}
    assert all(beside[number] <= alone[number] + math.ceil(40 * SHORT / (BUDGET // 2)) for number in range(24))


def test_equal_prompts_run_one_after_the_other(roomy):
    e = roomy()
    for number in range(4):
        e.submit(number, own(number, 2 * BUDGET), max_tokens=1)
    e.settle()
    assert [row[1] for plan in e.sent for row in plan.rows] == [BUDGET] * 8
    assert [len(plan.admits) for plan in e.sent] == [1, 0] * 4


def test_an_endless_stream_of_short_prompts_cannot_starve_a_long_one(roomy):
    e = roomy()
    e.submit(1, own(1, 900), max_tokens=1)
    number = 10
    for _ in range(50):
        while e.core.live_requests.waiting.num_tokens < 2 * BUDGET:
            number += 1
            e.submit(number, own(number, 32), max_tokens=1)
        e.step()
        if e.tokens[1, 0]:
            break
    assert len(e.sent) - len(e.plans) <= math.ceil(900 / (BUDGET // 2))


def test_the_shortest_goes_first_and_a_new_one_passes_a_longer_one_under_way(roomy):
    e = roomy()
    e.submit(1, own(1, 900), max_tokens=1)
    e.submit(2, own(2, 400), max_tokens=1)
    assert e.plan().rows == [(0, 128, 0), (1, 128, 0)]
    e.submit(3, own(3, 200), max_tokens=1)
    e.submit(4, own(4, 60), max_tokens=1)
    assert e.plan().rows == [(0, 128, 0), (2, 60, 1), (3, 68, 0)]
    e.answer()
    assert e.plan().rows == [(0, 128, 0), (3, 128, 0)]
    e.answer()
    assert e.plan().rows == [(0, 128, 0), (1, 124, 0), (3, 4, 1)]
    e.settle()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_so_many_prompts_are_split_at_once(roomy, most):
    e = roomy(max_num_partial_prefills=most)
    for number, length in enumerate((1000, 800, 600, 400, 140)):
        e.submit(number, own(number, length), max_tokens=1)
        e.plan()
        e.answer()
        assert e.core.group_epoch.running.num_partial <= most
    assert e.core.group_epoch.running.num_partial == most
    e.submit(9, own(9, 100), max_tokens=1)
    assert (100, 1) in [row[1:] for row in e.plan().rows]
    e.settle()


def test_who_passes_leaves_a_slot_for_the_first_in_line(roomy):
    e = roomy(max_num_seqs=3)
    e.submit(1, own(1, 900), max_tokens=9)
    e.plan()
    e.submit(2, own(2, 901), max_tokens=9)
    e.submit(3, own(3, 8), max_tokens=9)
    e.submit(4, own(4, 9), max_tokens=9)
    plan = e.plan()
    assert [admit.params.seed for admit in plan.admits.values()] == [3]
    e.settle()
    assert e.finishes[3, 0].usage.queue_seconds == 0


def test_who_passes_leaves_blocks_for_the_first_in_line(roomy):
    e = roomy(num_blocks=460)
    e.submit(1, own(1, 900), max_tokens=9)
    e.plan()
    e.submit(2, own(2, 901), max_tokens=9)
    e.submit(3, own(3, 8), max_tokens=9)
    assert e.plan().admits == {}
    e.abort(2)
    e.answer()
    assert [admit.params.seed for admit in e.plan().admits.values()] == [3]
    e.settle()


def test_nobody_passes_the_first_in_line_while_it_is_held_for_blocks(roomy):
    e = roomy(num_blocks=240, max_num_batched_tokens=1024)
    e.submit(1, own(1, 900), max_tokens=9)
    e.submit(2, own(2, 700), max_tokens=9)
    e.submit(3, own(3, 8), max_tokens=9)
    assert [admit.params.seed for admit in e.plan().admits.values()] == [1]
    e.settle()
    assert next(iter(e.finishes)) == (1, 0)
    assert e.core.counters.num_passed == 0


def test_a_better_priority_goes_before_a_prompt_under_way(roomy):
    e = roomy(scheduling_policy="priority")
    e.submit(1, own(1, 900), max_tokens=1, priority=5)
    e.plan()
    e.submit(2, own(2, 700), max_tokens=1, priority=1)
    e.submit(3, own(3, 30), max_tokens=1, priority=5)
    assert e.plan().rows == [(1, 256, 0)]
    e.answer()
    assert e.plan().rows == [(1, 256, 0)]
    e.answer()
    assert e.plan().rows == [(1, 188, 1), (0, 38, 0), (2, 30, 1)]
    e.settle()


def test_within_a_lower_priority_the_rest_is_shared_alike(roomy):
    e = roomy(scheduling_policy="priority")
    e.submit(1, own(1, 900), max_tokens=1, priority=5)
    e.plan()
    for number in range(2, 10):
        e.submit(number, own(number, 56), max_tokens=1, priority=5)
    e.submit(20, own(20, 100), max_tokens=1, priority=1)
    rows = {row[0]: row[1] for row in e.plan().rows}
    assert rows[0] == (BUDGET - 100) // 2
    assert sum(rows.values()) == BUDGET
    e.settle()


def test_outputs_of_one_short_prompt_all_come_before_the_long_ones(roomy):
    e = roomy()
    for number in range(8):
        e.submit(number, own(number, LONG), max_tokens=1)
    e.plan()
    e.submit(9, own(9, 8), n=4, max_tokens=1)
    e.plan()
    e.answer()
    plan = e.plan()
    assert [(admit.params.seed, admit.output_index) for admit in plan.admits.values()] == [(9, 1), (9, 2), (9, 3)]
    e.settle()


def test_many_outputs_of_a_long_prompt_enter_together_when_it_is_there(roomy):
    e = roomy()
    e.submit(1, own(1, LONG), n=20, max_tokens=1)
    for number in range(2, 9):
        e.submit(number, own(number, 60), max_tokens=1)
    for number in range(9, 12):
        e.submit(number, own(number, LONG), max_tokens=1)
    for _ in range(20):
        plan = e.plan()
        forks = [admit.output_index for admit in plan.admits.values() if admit.params.seed == 1 and admit.output_index]
        if forks:
            break
        e.answer()
    assert forks == list(range(1, 20))
    e.settle()


def test_a_prompt_that_runs_whole_is_passed_over_once(roomy):
    e = roomy(enable_chunked_prefill=False, max_model_len=BUDGET)
    for number in range(4):
        e.submit(number, own(number, 240), max_tokens=1)
    for number in range(10, 17):
        e.submit(number, own(number, 30), max_tokens=1)
    e.settle()
    seeds = [[admit.params.seed for admit in plan.admits.values()] for plan in e.sent]
    assert seeds == [[10, 11, 12, 13, 14, 15, 16], [0], [1], [2], [3]]


def test_an_endless_stream_of_short_prompts_cannot_starve_one_that_runs_whole(roomy):
    e = roomy(enable_chunked_prefill=False, max_model_len=BUDGET)
    e.submit(1, own(1, 240), max_tokens=1)
    for number in range(10, 60):
        e.submit(number, own(number, 32), max_tokens=1)
    assert e.plan().num_tokens == BUDGET
    assert [row[1] for row in e.plan().rows] == [240]
    e.settle()


def test_decodes_of_those_who_pass_never_push_a_whole_prompt_out(roomy):
    e = roomy(enable_chunked_prefill=False, max_model_len=BUDGET)
    e.submit(1, own(1, 200), max_tokens=50)
    for number in range(2, 60):
        e.submit(number, own(number, 3), max_tokens=50)
    first, second = e.plan(), e.plan()
    assert 1 not in [admit.params.seed for admit in first.admits.values()]
    assert len(first.admits) == BUDGET - 200
    assert next(admit.params.seed for admit in second.admits.values()) == 1
    e.settle()


def test_passing_is_counted_and_told_to_who_passed_and_who_waits(roomy):
    e = roomy()
    for number in range(5):
        e.submit(number, own(number, LONG), max_tokens=1)
    e.plan()
    e.submit(9, own(9, SHORT), max_tokens=1)
    e.plan()
    figures = {one.name: one.value for one in e.ask(MetricsQuery(1)).figures}
    assert (figures["passes_total"], figures["partial_prefills"]) == (1, 1)

    def moments(label):
        (story,) = e.ask(ExplainQuery(1, label)).stories
        return [moment.detail for moment in story.moments]

    assert moments("label-9")[-1] == "0 of 4 tokens are there, 1 blocks reserved; it passed 4 that were before it"
    text = "2 outputs are before it in the queue; it passes longer ones if blocks suffice for both"
    assert moments("label-4")[-1] == text
    e.settle()
