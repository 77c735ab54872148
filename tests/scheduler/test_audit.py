"""What a scheduler does at rest does not grow with its prefix cache: an audit looks at a part, in turn at all of it."""

import gc
import sys
import weakref
from pathlib import Path

import msgspec
import pytest
import zmq

from quire.scheduler import audit
from quire.scheduler.audit import AuditSchedule
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.core.invariants import InvariantError, check
from quire.scheduler.loop import SchedulerLoop
from quire.scheduler.state.events import Submitted
from quire.scheduler.state.prefix import PrefixEntry

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from loop_peers import submit

PARTS = 8
CHAIN = 64
"""Blocks of a prefix."""


@pytest.fixture
def cached(engine, facts, monkeypatch):
    """Makes engines at rest, whose whole pools are cached prefixes."""
    monkeypatch.setattr(audit, "MOST_BLOCKS", 64)

    def make(num_blocks):
        e = engine(msgspec.structs.replace(facts, num_blocks=num_blocks))
        pool, index = e.core.group_epoch.memory.pool, e.core.group_epoch.memory.index
        for _ in range(num_blocks // CHAIN):
            blocks = pool.take(CHAIN)
            index.publish(index.root(0, "", ""), [block.to_bytes(16, "little") for block in blocks], blocks)
            pool.settle(pool.drop(blocks, 1), 1, index.by_block)
        return e

    return make


def forget_an_entry(memory):
    memory.index.by_block[77] = None


def name_another_block(memory):
    memory.index.by_block[77].block = 78


def believe_a_plan(memory):
    memory.index.by_block[77].step = 1


def break_the_list(memory):
    memory.pool.idle._before[77] = 99


def check_all(core, parts):
    for part in parts:
        check(core, part)


@pytest.mark.parametrize("damage", [forget_an_entry, name_another_block, believe_a_plan, break_the_list])
def test_as_many_audits_as_there_are_parts_find_any_damage(cached, damage):
    e, schedule = cached(64 * PARTS), AuditSchedule(1)
    parts = [schedule.next_part(e.core) for _ in range(PARTS)]
    check_all(e.core, parts)
    damage(e.core.group_epoch.memory)
    with pytest.raises(InvariantError, match="I5"):
        check_all(e.core, parts)


def test_an_idle_block_that_is_not_counted_is_found(cached):
    e = cached(64)
    e.core.group_epoch.memory.pool.idle._count += 1
    with pytest.raises(InvariantError, match="I1"):
        check(e.core)


def num_lines(core, part):
    """Lines of Python that a check runs, those of a loop as often as it runs them."""
    count = 0

    def trace(*_):
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        check(core, part)
    finally:
        sys.settrace(before)
    return count


def test_an_audit_of_a_large_cache_does_no_more_than_one_of_a_small(cached):
    small, large = (cached(64 * parts).core for parts in (PARTS, 8 * PARTS))
    of_parts = [
        max(num_lines(core, schedule.next_part(core)) for _ in range(8 * PARTS))
        for core, schedule in ((small, AuditSchedule(1)), (large, AuditSchedule(1)))
    ]
    assert of_parts[1] < 2 * of_parts[0]
    assert num_lines(large, slice(None)) > PARTS * of_parts[1]  # blocks that are looked at do count


class Knot:
    """Garbage that no count of references finds."""


def num_walked():
    """Cached prefixes that the next collection of garbage would walk."""
    return sum(type(one) is PrefixEntry for one in gc.get_objects())


@pytest.fixture
def loop(tmp_path):
    """A loop that nobody runs."""
    addresses = {name: f"ipc://{tmp_path}/{name}" for name in ("frontends_address", "workers_address")}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    loop = SchedulerLoop(SchedulerConfig(**addresses), context)
    yield loop
    loop._frontends.close()
    loop._workers.close()
    context.term()


@pytest.mark.thorough
def test_garbage_is_not_looked_for_again_in_what_is_cached_until_a_new_group(cached, loop):
    try:
        e = cached(64)
        loop._core = e.core
        knot = Knot()
        knot.itself, tied = knot, weakref.ref(knot)
        assert num_walked() >= 64
        loop._collect_garbage(100.0)
        del knot
        assert num_walked() == 0
        e.submit(1, 9)
        e.step()
        written = num_walked()
        loop._collect_garbage(200.0)
        assert num_walked() == written > 0  # what lives may be garbage later
        e.settle()
        loop._collect_garbage(300.0)
        assert (num_walked(), tied() is None) == (0, False)
        e.start()
        loop._collect_garbage(400.0)
        assert tied() is None
    finally:
        gc.freeze()  # as this process was before


def test_nothing_is_served_from_a_state_that_a_request_broke(cached, loop, monkeypatch):
    e = cached(64)
    loop._core = e.core

    def broken(event, now):
        e.core.group_epoch.memory.pool.idle._count += 1
        raise ZeroDivisionError

    monkeypatch.setattr(e.core, "handle", broken)
    with pytest.raises(InvariantError, match="I1"):
        loop._guarded(Submitted(b"f", submit(1)), 0.0)
