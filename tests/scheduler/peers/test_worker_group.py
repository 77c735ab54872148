"""The worker group's handshake and the leases of frontends."""

import msgspec
import pytest

from quire.proto.messages.plans import GroupFacts, Ready, WorkerHello
from quire.proto.messages.requests import PROTOCOL_VERSION, ModelFacts
from quire.scheduler.peers.leases import Leases
from quire.scheduler.peers.step_watchdog import StepWatchdog
from quire.scheduler.peers.worker_group import GroupError, WorkerGroup
from quire.scheduler.state.events import GroupReady

FACTS = ModelFacts(
    max_model_len=64,
    vocab_size=32,
    eos_token_ids=(0,),
    num_blocks=8,
    block_sizes=(4,),
    kv_bytes=1,
    weight_bytes=1,
    device="cpu",
    dtype="float32",
    architecture="LlamaForCausalLM",
    revision="r",
)


def hello(rank: int, epoch: int = 1, world_size: int = 2, version: int = PROTOCOL_VERSION) -> WorkerHello:
    return WorkerHello(version, epoch, rank, world_size)


PAIR = GroupFacts(2)


def ready(rank: int, epoch: int = 1, digest: str = "d", facts: ModelFacts = FACTS, group: GroupFacts = PAIR) -> Ready:
    return Ready(epoch, rank, facts, group, digest)


def test_a_group_is_ready_only_when_its_last_rank_is():
    group = WorkerGroup(2)
    group.hello(b"b", hello(1))
    group.hello(b"a", hello(0))
    assert group.ready(b"a", ready(0)) is None
    assert not group.complete
    assert group.reporter is None
    assert group.ready(b"b", ready(1)) == GroupReady(1, PAIR, FACTS)
    assert group.reporter == 0
    assert group.peers == (b"a", b"b")


def test_a_worker_of_another_protocol_version_is_refused_naming_both():
    with pytest.raises(GroupError, match=f"protocol version 99 of the worker is not {PROTOCOL_VERSION} of the sched"):
        WorkerGroup(2).hello(b"a", hello(0, version=99))


@pytest.mark.parametrize("bad", [hello(2), hello(0, world_size=4), hello(-1)])
def test_a_worker_that_does_not_fit_is_refused(bad):
    with pytest.raises(GroupError):
        WorkerGroup(2).hello(b"a", bad)


def test_a_second_worker_of_one_rank_is_refused():
    group = WorkerGroup(2)
    group.hello(b"a", hello(0))
    with pytest.raises(GroupError, match="taken"):
        group.hello(b"c", hello(0))


def test_a_higher_epoch_replaces_the_group_and_a_lower_one_is_refused():
    group = WorkerGroup(1)
    group.hello(b"a", hello(0, world_size=1))
    assert group.ready(b"a", ready(0, group=GroupFacts(1))) is not None
    group.hello(b"b", hello(0, epoch=2, world_size=1))
    assert group.rank_of(b"a") is group.reporter is None
    assert not group.complete
    with pytest.raises(GroupError, match="past"):
        group.hello(b"a", hello(0, epoch=1, world_size=1))
    with pytest.raises(GroupError):
        group.ready(b"a", ready(0, epoch=1))


@pytest.mark.parametrize(
    "other",
    [
        ready(1, digest="x"),
        ready(1, facts=msgspec.structs.replace(FACTS, num_blocks=9)),
        ready(1, epoch=3),
        ready(1, group=GroupFacts(2, reporter=1)),
    ],
)
def test_ranks_that_disagree_are_refused(other):
    group = WorkerGroup(2)
    group.hello(b"a", hello(0))
    group.hello(b"b", hello(1))
    group.ready(b"a", ready(0))
    with pytest.raises(GroupError):
        group.ready(b"b", other)


@pytest.mark.parametrize(
    "group",
    [
        GroupFacts(1),
        GroupFacts(2, reporter=2),
        GroupFacts(2, reporter=-1),
        GroupFacts(2, num_stages=3),
        GroupFacts(2, num_stages=0),
        GroupFacts(2, max_in_flight=0),
    ],
)
def test_a_shape_that_no_group_of_two_can_have_is_refused(group):
    pair = WorkerGroup(2)
    pair.hello(b"a", hello(0))
    with pytest.raises(GroupError, match="no shape of a group of 2"):
        pair.ready(b"a", ready(0, group=group))


def test_only_a_silent_frontend_loses_its_lease():
    leases = Leases(5.0)
    assert not leases.touch(b"f", 0.0)
    leases.join(b"f", "frontend", 0.0)
    leases.join(b"g", "frontend", 0.0)
    leases.join(b"s", "supervisor", 0.0)
    assert [leases.expired(now) for now in (1.0, 2.0, 3.0)] == [[], [], []]
    assert leases.touch(b"g", 4.0)
    assert leases.expired(5.0) == []
    assert leases.expired(6.0) == [b"f"]
    leases.leave(b"f")
    assert leases.expired(6.0) == []
    assert [leases.expired(now) for now in (7.0, 8.0, 9.0, 10.0)] == [[], [], [], [b"g"]]


def test_no_lease_ends_while_the_scheduler_itself_stood_still():
    """Every pause is longer than the lease, and is looked at before the frontends could beat again."""
    leases = Leases(5.0)
    leases.join(b"f", "frontend", 0.0)
    for pause in range(1, 6):
        assert leases.expired(10.0 * pause) == []
        assert leases.touch(b"f", 10.0 * pause + 0.1)
    assert [leases.expired(50.1 + second) for second in range(1, 7)] == [[], [], [], [], [], [b"f"]]


def test_only_a_plan_that_stays_the_oldest_too_long_means_that_the_group_hangs():
    watch = StepWatchdog(2.0)
    assert not watch.hangs((1, 1), 0.0)
    assert not watch.hangs((1, 1), 1.0)
    assert not watch.hangs((1, 1), 2.0)
    assert not watch.hangs((1, 2), 2.1)  # progress
    assert not watch.hangs((2, 2), 4.2)  # another group
    assert not watch.hangs(None, 100.0)  # nothing to do
    assert not watch.hangs((2, 3), 100.1)
    assert not watch.hangs((2, 3), 101.1)
    assert not watch.hangs((2, 3), 102.0)
    assert watch.hangs((2, 3), 102.2)


def test_no_group_hangs_while_the_scheduler_itself_stood_still():
    watch = StepWatchdog(2.0)
    assert not watch.hangs((1, 1), 0.0)
    assert not watch.hangs((1, 1), 3600.0)
    assert not watch.hangs((1, 1), 3600.9)
    assert watch.hangs((1, 1), 3601.2)
