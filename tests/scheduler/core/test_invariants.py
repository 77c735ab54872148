"""The checker finds every kind of damage: one broken rule after the other."""

import pytest

from quire.scheduler.core.invariants import InvariantError, check


def leak(e):
    e.core.group_epoch.memory.pool.free.pop()


def duplicate(e):
    pool = e.core.group_epoch.memory.pool
    pool.free.append(pool.free[0])


def miscount(e):
    sequence = e.core.group_epoch.running.live()[0]
    e.core.group_epoch.memory.pool.refs[sequence.tables[0][0]] += 1


def forget_a_reader(e):
    sequence = e.core.group_epoch.running.live()[0]
    e.core.group_epoch.memory.pool.refs[sequence.tables[0][0]] -= 1


def share_a_block_in_writing(e):
    first, second = e.core.group_epoch.running.live()
    pool = e.core.group_epoch.memory.pool
    own = second.tables[0][-1]
    second.tables[0][-1] = first.tables[0][-1]
    pool.refs[own] = 0
    pool.refs[first.tables[0][-1]] += 1
    pool.free.append(own)


def settle_a_fence_early(e):
    memory = e.core.group_epoch.memory
    e.abort(2)
    memory.acknowledge(memory.acked + 2)


def keep_a_fence(e):
    e.abort(2)
    e.core.group_epoch.memory.fences[0] = e.core.group_epoch.memory.fences[0]._replace(step=0)


def publish_early(e):
    group_epoch = e.core.group_epoch
    sequence = group_epoch.running.live()[1]
    parent = sequence.entries[0][-1] if sequence.entries[0] else sequence.roots[0]
    group_epoch.memory.index.publish(parent, [b"\0" * 16], sequence.tables[0][-1:])


def change_a_cached_token(e):
    e.core.group_epoch.memory.index.entries()[0].content = b"\0" * 16


def end_twice(e):
    e.core.group_epoch.running.live()[0].request.num_live += 1


def know_too_much(e):
    e.core.group_epoch.running.num_known[0] = 200


def lose_a_waiting(e):
    e.core.live_requests.waiting._by_age.remove(e.core.live_requests.waiting.first().order)


def forget_the_running(e):
    e.core.group_epoch.running.active[0] = False


def believe_a_counter(e):
    e.core.live_requests.num_live += 1


def reserve_too_much(e):
    group_epoch = e.core.group_epoch
    sequence = group_epoch.running.live()[0]
    sequence.tables[0] += group_epoch.memory.take(3)
    group_epoch.running.num_blocks[0][0] += 3


def run_a_slot_twice(e):
    plan = e.core.group_epoch.in_flight.plans[0]
    plan.slots = plan.slots * 0


def free_a_block_of_another_pool(e):
    e.core.group_epoch.memory.pool.free.append(10**9)


def free_what_is_no_block(e):
    e.core.group_epoch.memory.pool.free[-1] = -1


BROKEN = {
    leak: "I1",
    free_a_block_of_another_pool: "I1",
    free_what_is_no_block: "I1",
    duplicate: "I1",
    miscount: "I2",
    forget_a_reader: "I2",
    share_a_block_in_writing: "I3",
    settle_a_fence_early: "I4",
    keep_a_fence: "I4",
    publish_early: "I5",
    change_a_cached_token: "I5",
    end_twice: "I6",
    know_too_much: "I7",
    lose_a_waiting: "I8",
    forget_the_running: "I8",
    believe_a_counter: "I9",
    reserve_too_much: "I9",
    run_a_slot_twice: "I12",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_damage_is_found_and_named(engine, damage):
    e = engine(max_num_seqs=2)
    e.submit(1, 9, max_tokens=50)
    e.submit(2, 10, max_tokens=50, cache_salt="other")
    e.submit(3, 5)
    e.step()
    e.plan()
    check(e.core)
    damage(e)
    with pytest.raises(InvariantError) as found:
        check(e.core)
    assert found.value.rule == BROKEN[damage], found.value.detail


def test_something_left_behind_is_found_when_all_is_quiet(engine):
    e = engine()
    e.submit(1, 9)
    e.settle()
    check(e.core)
    e.core.group_epoch.memory.pool.fenced[0] = 1
    with pytest.raises(InvariantError, match="I1"):
        check(e.core)
    del e.core.group_epoch.memory.pool.fenced[0]
    e.core.live_requests.registry.frontend(b"nobody")
    with pytest.raises(InvariantError, match="I14"):
        check(e.core)
