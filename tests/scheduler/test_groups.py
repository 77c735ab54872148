"""The death and the return of worker groups, as the core sees them."""

import msgspec

from quire.proto.messages.plans import GENESIS, GroupFacts
from quire.proto.transport.wire import unpack
from quire.scheduler.core.drain import RESUBMIT_SECONDS
from quire.scheduler.state.events import ChangeState, DrainRequested, GroupGone, GroupReady


def lose(e, reason="killed"):
    e.plans.clear()
    return e.handle(GroupGone(e.epoch, reason))


def test_what_ran_goes_on_in_the_next_group(engine):
    e = engine()
    e.submit(1, 5, max_tokens=10)
    for _ in range(4):
        e.step()
    delivered = list(e.tokens[1, 0])
    assert delivered
    lose(e)
    assert e.states == ["ready", "recovering"]
    assert e.plan() is None
    e.submit(2, 5)
    assert e.reason(2) is None
    e.start()
    plan = e.plan()
    assert (plan.epoch, plan.step, plan.message.previous) == (2, 1, GENESIS)
    assert unpack(plan.admits[0].tokens).tolist() == [*range(10, 15), *delivered]
    assert plan.admits[0].num_prompt == 5
    e.settle()
    assert e.tokens[1, 0] == e.default_tokens(1, 10)
    assert e.finishes[1, 0].usage.num_restarts == 1
    assert e.finishes[2, 0].usage.num_restarts == 0
    assert e.states == ["ready", "recovering", "ready"]


def test_nothing_of_the_old_group_is_believed(engine):
    e = engine()
    e.submit(1, 9, max_tokens=10)
    e.plan()
    old = e.plans[0]
    lose(e)
    e.start()
    assert len(e.core.group_epoch.memory.index) == 0
    e.plan()
    new = e.plans.popleft()
    e.plans.append(old)
    before = e.core.counters.num_stale
    e.answer()
    assert e.core.counters.num_stale == before + 1
    assert not e.tokens[1, 0]
    e.plans.append(new)
    e.answer()
    assert e.tokens[1, 0]


def test_a_new_group_without_a_word_about_the_old_one_is_the_same(engine):
    e = engine()
    e.submit(1, 5, max_tokens=10)
    e.step()
    e.start()
    e.settle()
    assert e.tokens[1, 0] == e.default_tokens(1, 10)
    assert e.finishes[1, 0].usage.num_restarts == 1


def test_old_news_about_groups_changes_nothing(engine):
    e = engine()
    e.submit(1, 5)
    e.handle(GroupGone(7, "never was"))
    e.handle(GroupReady(1, GroupFacts(), e.facts))
    assert e.core.counters.num_stale == 2
    assert e.core.state == "ready"
    e.settle()
    assert e.reason(1) == "length"


def test_a_request_that_is_in_too_many_dying_groups_is_quarantined(engine):
    e = engine(max_restarts_per_request=1, max_num_seqs=1)
    e.submit(1, 5, max_tokens=100)
    e.submit(2, 5)
    for _ in range(2):
        e.step()
        lose(e)
        e.start()
    assert e.finishes[1, 0].error == "POISON_REQUEST"
    assert "2 times" in e.finishes[1, 0].message
    e.settle()
    assert e.reason(2) == "length"
    assert e.finishes[2, 0].usage.num_restarts == 0


def test_what_the_new_group_cannot_hold_ends_with_a_clear_word(engine, facts):
    e = engine()
    e.submit(1, 20, max_tokens=100)
    e.submit(2, 5)
    e.step()
    lose(e)
    e.start(msgspec.structs.replace(facts, num_blocks=8))
    finish = e.finishes[1, 0]
    assert (finish.reason, finish.error) == ("error", "EXCEEDS_CAPACITY")
    assert "after a restart" in finish.message
    e.settle()
    assert e.reason(2) == "length"


def test_a_drain_goes_on_in_the_next_group(engine):
    e = engine()
    e.submit(1, 5, max_tokens=10)
    e.step()
    e.handle(DrainRequested(100))
    lose(e)
    assert e.core.state == "draining"
    # the supervisor must know that the new group is ready, or it takes it for one that never came up
    assert ChangeState("draining", "") in e.start()
    e.settle()
    assert e.core.state == "draining"
    assert e.reason(1) == "length"
    e.tick(RESUBMIT_SECONDS)
    assert e.drained == [0]


def test_siblings_survive_a_restart(engine):
    e = engine()
    e.submit(1, 10, n=3, max_tokens=9)
    for _ in range(3):
        e.step()
    lose(e)
    e.start()
    e.settle()
    for index in range(3):
        assert e.tokens[1, index] == e.default_tokens(1, 9, index)
