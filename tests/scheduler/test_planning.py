"""The contents of plans: rows, budget, order, overlap."""

import msgspec
import pytest

from quire.proto.messages.plans import GroupFacts
from quire.proto.transport.wire import unpack
from quire.scheduler.state.events import GroupReady


def test_a_request_runs_from_prompt_to_length(engine):
    e = engine()
    e.submit(1, [5, 6, 7], max_tokens=4)
    plan = e.plan()
    assert plan.rows == [(0, 3, 1)]
    admit = plan.admits[0]
    assert unpack(admit.tokens).tolist() == [5, 6, 7]
    assert (admit.num_prompt, admit.num_computed, admit.output_index) == (3, 0, 0)
    e.settle()
    assert e.tokens[1, 0] == e.default_tokens(1, 4)
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.num_tokens, finish.stop_token_id) == ("length", 4, -1)
    assert finish.usage.prompt_tokens == 3
    assert finish.usage.completion_tokens == 4


def test_two_plans_are_in_flight_and_no_third(engine):
    e = engine()
    e.submit(1, 3, max_tokens=50)
    assert [e.plan().step for _ in range(2)] == [1, 2]
    assert e.plan() is None
    e.answer()
    assert e.plan().step == 3


def test_a_plan_waits_for_the_slowest_rank(engine):
    e = engine(world_size=2)
    e.submit(1, 3, max_tokens=50)
    e.plan(), e.plan()
    e.answer(acks=False)
    assert e.plan() is None
    e.ack(1, 1)
    assert e.plan().step == 3


def test_a_length_stop_costs_no_row(engine):
    e = engine()
    e.submit(1, 3, max_tokens=3)
    rows = 0
    while e.step():
        pass
    rows = e.num_steps
    assert rows == 3


def test_a_late_stop_costs_one_row_that_is_dropped(engine):
    e = engine()
    e.script[1, 0] = [50, 2]
    e.submit(1, 3, max_tokens=50, ignore_eos=False)
    e.settle()
    assert e.tokens[1, 0] == [50, 2]
    assert (e.reason(1), e.finishes[1, 0].stop_token_id) == ("stop", 2)
    assert e.num_steps == 3


def test_the_slot_of_a_late_stop_is_released_and_used_again_while_its_row_is_in_flight(engine):
    e = engine(max_num_seqs=1)
    e.script[1, 0] = [2]
    e.submit(1, 3, max_tokens=50, ignore_eos=False)
    e.submit(2, 3, max_tokens=3)
    e.plan(), e.plan()
    e.answer()
    plan = e.plan()
    assert plan.releases == [0]
    assert plan.admits[0].params.seed == 2
    e.settle()
    assert e.tokens[1, 0] == [2]
    assert e.tokens[2, 0] == e.default_tokens(2, 3)


def test_a_long_prompt_is_run_in_chunks_beside_decodes(engine):
    e = engine(max_num_batched_tokens=16)
    e.submit(1, 3, max_tokens=40)
    e.plan()
    e.submit(2, 40, max_tokens=2)
    plan = e.plan()
    assert plan.rows == [(0, 1, 1), (1, 15, 0)]
    e.answer()
    assert e.plan().rows == [(0, 1, 1), (1, 15, 0)]
    e.answer()
    assert e.plan().rows == [(0, 1, 1), (1, 10, 1)]
    e.settle()
    assert e.tokens[2, 0] == e.default_tokens(2, 2)


def test_one_token_rows_come_first_even_when_admitted_last(engine):
    e = engine()
    e.submit(1, 9)
    e.submit(2, 1)
    e.submit(3, [7] * 7)
    assert [row[1] for row in e.plan().rows] == [1, 9, 7]


def test_rows_and_tokens_stay_within_the_limits(engine):
    e = engine(max_num_seqs=3, max_num_batched_tokens=10)
    for number in range(8):
        e.submit(number, 6, max_tokens=3)
    for _ in range(100):
        plan = e.plan()
        if plan:
            assert len(plan.rows) <= 3
            assert plan.num_tokens <= 10
        elif e.plans:
            e.answer()
        else:
            break
    assert {e.reason(number) for number in range(8)} == {"length"}


def test_without_chunked_prefill_a_prompt_runs_whole(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, max_model_len=64), enable_chunked_prefill=False)
    e.submit(1, 40)
    e.submit(2, [7] * 40)
    assert e.plan().rows == [(0, 40, 1)]
    assert e.plan().rows == [(0, 1, 1), (1, 40, 1)]
    e.settle()


def test_prompts_that_a_model_reads_whole_run_again_whole_with_what_was_made(engine, facts):
    """PaliGemma: a context that no step holds would leave an output that was preempted waiting for ever."""
    whole = msgspec.structs.replace(facts, max_model_len=64, whole_prompts=True, shares_prefixes=False)
    e = engine(facts=whole)
    e.submit(1, 40)
    e.submit(2, [7] * 40)
    assert e.plan().rows == [(0, 40, 1)]
    assert e.plan().rows == [(0, 1, 1), (1, 40, 1)]
    e.settle()
    longer = engine(facts=msgspec.structs.replace(whole, max_model_len=65), ready=False)
    longer.start()
    assert longer.states == ["failed"]
    assert "the model reads prompts whole and max_model_len 65 is more than max_num" in longer.others[0].detail


def test_without_chunked_prefill_a_longer_context_than_the_budget_fails_the_engine(engine):
    e = engine(ready=False, enable_chunked_prefill=False)
    e.start()
    assert e.states == ["failed"]
    assert "enable_chunked_prefill" in e.others[0].detail
    assert "max_num_batched_tokens 64" in e.others[0].detail
    e.submit(1, 3)
    assert e.finishes[1, 0].error == "FAILED"


def test_the_best_waiting_output_is_not_overtaken(engine, facts):
    e = engine(facts=msgspec.structs.replace(facts, num_blocks=8))
    e.submit(1, 16, max_tokens=8)
    e.submit(2, [7] * 20, max_tokens=4)
    e.submit(3, 1, max_tokens=4)
    assert set(e.plan().admits) == {0}
    e.settle()
    assert list(e.finishes) == [(1, 0), (2, 0), (3, 0)]


def test_priority_decides_who_is_admitted_first(engine):
    e = engine(max_num_seqs=1, scheduling_policy="priority")
    e.submit(1, 3, priority=5)
    e.submit(2, 3, priority=0)
    e.submit(3, 3, priority=-1)
    e.settle()
    assert list(e.finishes) == [(3, 0), (2, 0), (1, 0)]


def test_an_adapter_is_named_by_number(engine):
    e = engine()
    e.submit(1, 3, adapter="lion")
    e.submit(2, 3)
    assert [admit.adapter for admit in e.plan().admits.values()] == [1, 0]
    e.settle()


def test_equal_events_give_equal_instructions(engine):
    def run():
        e = engine(max_num_seqs=3)
        for number in range(6):
            e.submit(number, 5 + number, frontend=b"f%d" % (number % 2), n=1 + number % 2, max_tokens=9)
        for _ in range(6):
            e.step()
        e.abort(3, frontend=b"f1")
        e.settle()
        return [(m.frontend, m.outputs) for m in e.messages], e.previous

    assert run() == run()


def test_nothing_is_planned_without_a_group(engine):
    e = engine(ready=False)
    assert e.plan() is None
    assert e.handle(GroupReady(1, GroupFacts(), e.facts))[0].state == "ready"
    assert e.core.plan(e.now) == []


@pytest.mark.parametrize("num_waiting", [0, 500])
def test_one_output_message_per_frontend_and_step(engine, num_waiting):
    e = engine(max_num_queued_reqs=1000)
    for number in range(4):
        e.submit(number, 3, frontend=b"f%d" % (number % 2), max_tokens=5)
    for number in range(num_waiting):
        e.submit(100 + number, 3, frontend=b"w", priority=0)
    e.plan()
    e.messages.clear()
    e.answer()
    names = [message.frontend for message in e.messages]
    assert len(names) == len(set(names))
    assert {b"f0", b"f1"} <= set(names)
