"""A prompt that could share more than is planned waits for the one under way, and for nothing else."""

import msgspec
import pytest

from quire.proto.messages.introspection import ExplainQuery
from quire.scheduler.core.siblings import Siblings

BUDGET = 64


@pytest.fixture
def roomy(engine, facts):
    """Slots and blocks for everything; a step runs 64 tokens."""

    def make(**config):
        room = msgspec.structs.replace(facts, num_blocks=8192, max_model_len=4096)
        return engine(facts=room, **{"max_num_seqs": 64, "max_num_batched_tokens": BUDGET, **config})

    return make


def prompt(common, number=0, tail=0):
    """So many tokens that all have, and others behind them."""
    return [*(5 + place % 900 for place in range(common)), *(3 + (number * 37 + place) % 900 for place in range(tail))]


def computed(e):
    """Prompt tokens that were run, of all plans."""
    return sum(row[1] for plan in e.sent for row in plan.rows if row[1] > 1)


def admitted(plan):
    return [admit.params.seed for admit in plan.admits.values()]


def test_a_shorter_prompt_waits_for_the_longer_one_that_it_begins_like(roomy):
    e = roomy()
    e.submit(1, prompt(2000), max_tokens=1)
    for number in range(2, 12):
        e.submit(number, prompt(400, number, 8), max_tokens=1)
    plans = [e.plan()]
    assert admitted(plans[0]) == [1]
    (story,) = e.ask(ExplainQuery(1, "label-2")).stories
    assert "waits for what it can share" in story.moments[-1].detail
    while not e.tokens[11, 0]:
        e.answer()
        plans.append(e.plan())
    shared = [admit.num_computed for plan in plans for admit in plan.admits.values()]
    assert shared == [0] + [400] * 10
    assert [row[1] for row in plans[5].rows] == [64], "while others wait, the one under way has all of the budget"
    e.settle()
    assert computed(e) == 2000 + 10 * 8
    assert {e.reason(number) for number in range(1, 12)} == {"length"}


def test_a_hundred_prompts_behind_a_long_one_that_is_like_them_compute_it_once(roomy):
    e = roomy(max_num_seqs=128, max_num_batched_tokens=256)
    for number in range(100):
        e.submit(number, prompt(800, number, 4 + number % 5), max_tokens=1)
    e.settle()
    assert computed(e) <= 800 + 100 * (4 + 4) + 100 * 4
    assert {e.reason(number) for number in range(100)} == {"length"}


def test_prompts_that_end_in_the_step_they_enter_are_not_compared_with_each_other(roomy, monkeypatch):
    """Comparisons of each with each took half a second of a step for 256 that come together."""
    compared, num_common = [], Siblings._num_common

    def counted(self, sequence, other):
        compared.append((sequence.request.number, other.request.number))
        return num_common(self, sequence, other)

    monkeypatch.setattr(Siblings, "_num_common", counted)
    e = roomy(max_num_seqs=256, max_num_batched_tokens=2048)
    for number in range(256):
        e.submit(number, prompt(0, number, 8), max_tokens=1)
    assert len(admitted(e.plan())) == 256
    assert not compared
    e.settle()
    e.submit(300, prompt(4000), max_tokens=1)
    for number in range(301, 365):
        e.submit(number, prompt(0, number, 8), max_tokens=1)
    e.plan()
    assert {other for _, other in compared} == {300}
    assert len(compared) == 64, "each with the one that goes on"


def test_nobody_waits_for_a_prompt_that_stands_still(roomy):
    e = roomy()
    e.submit(1, [901] * 3000, max_tokens=1)  # takes the half by age
    e.plan(), e.answer()
    e.submit(2, prompt(2000), max_tokens=1)
    e.plan(), e.answer()
    e.submit(3, prompt(400, 3, 8), max_tokens=1)
    e.submit(4, [902] * 450, max_tokens=1)  # is longer than what waits, and shorter than what it waits for
    plan = e.plan()
    assert admitted(plan) == [4]
    assert [row[1] for row in plan.rows] == [32, 32]
    e.answer()
    plan = e.plan()
    assert admitted(plan) == [3]
    assert [admit.num_computed for admit in plan.admits.values()] == [32], "it shares what is there"
    e.settle()
    assert {e.reason(number) for number in range(1, 5)} == {"length"}


def test_a_better_priority_does_not_wait_for_a_worse_one(roomy):
    e = roomy(scheduling_policy="priority")
    e.submit(1, prompt(2000), max_tokens=1, priority=5)
    e.plan()
    e.submit(2, prompt(400, 2, 8), max_tokens=1, priority=1)
    assert admitted(e.plan()) == [2]
    e.settle()


@pytest.mark.parametrize("ends", ["abort", "deadline"])
def test_who_waits_goes_on_when_the_other_is_gone(roomy, ends):
    e = roomy()
    e.submit(1, prompt(2000), max_tokens=1, timeout_seconds=1 if ends == "deadline" else 100)
    e.submit(2, prompt(400, 2, 8), max_tokens=1)
    e.plan(), e.answer(), e.plan(), e.answer()
    if ends == "abort":
        e.abort(1)
    else:
        e.tick(2)
    plan = e.plan()
    assert admitted(plan) == [2]
    assert plan.admits[0 if 0 in plan.admits else 1].num_computed == 2 * BUDGET
    e.settle()
    assert e.reason(2) == "length"


@pytest.mark.parametrize("other", [{"cache_salt": "b"}, {"adapter": "lion"}, {"prompt_logprobs": 0}])
def test_who_cannot_share_does_not_wait(roomy, other):
    e = roomy()
    e.submit(1, prompt(2000), max_tokens=1)
    e.submit(2, prompt(400, 2, 8), max_tokens=1, **other)
    assert admitted(e.plan()) == [1, 2]
    e.settle()


def test_prompts_that_are_alike_for_less_than_a_block_do_not_wait(roomy):
    e = roomy()
    e.submit(1, prompt(2000), max_tokens=1)
    e.submit(2, prompt(3, 2, 400), max_tokens=1)
    assert admitted(e.plan()) == [1, 2]
    e.settle()
