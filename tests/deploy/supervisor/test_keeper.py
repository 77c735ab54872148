"""The keeper of an engine alone: events and times in, actions out, without a process or a socket."""

import pytest

from quire.deploy.supervisor.actions import (
    AnnounceReady,
    Kill,
    KillHung,
    Log,
    Send,
    StartFrontend,
    StartGroup,
    StartScheduler,
    Terminate,
)
from quire.deploy.supervisor.engine_spec import Timers
from quire.deploy.supervisor.keeper import Death, EngineKeeper, FrontendSign
from quire.proto.messages.requests import Drain, Drained, GroupFailed, GroupLost, Limits, SchedulerBeat, Welcome
from quire.proto.process import exit_codes

LIMITS = Limits(
    max_num_seqs=1,
    max_num_batched_tokens=1,
    max_num_queued_reqs=1,
    max_num_queued_tokens=1,
    priority_enabled=False,
    max_timeout_seconds=1.0,
)
UP, NOT_UP = FrontendSign(True, 1), FrontendSign(False, 0)
TIMERS = Timers(startup=60.0, drain=20.0, drain_margin=5.0, stop_grace=5.0, stop_tier=2.0, max_restarts=2)


def welcome(epoch, lives=True, state="ready"):
    return Welcome(6, "life", state, LIMITS, None, "", epoch, lives)


class Kept:
    """A keeper of two ranks and one frontend, at a time that the test moves."""

    def __init__(self, timers=TIMERS):
        self.keeper = EngineKeeper(2, 1, timers)
        self.now = 1000.0
        self.heartbeat = 0

    def start_due(self, failing=()):
        """Start what is due; the starts of units named in `failing` fail."""
        done = []
        for unit in self.keeper.units_due(self.now):
            if unit.name in failing:
                self.keeper.start(unit, self.now)
                done += self.keeper.on_not_started(unit, "no room", self.now)
            else:
                done += self.keeper.start(unit, self.now)
        return done

    def serve(self):
        """Begin, and get everything ready."""
        self.keeper.begin(self.now)
        self.start_due()
        self.hear(welcome(1))
        assert isinstance(self.tick(sign=UP)[-1], AnnounceReady)
        return self

    def hear(self, message):
        return self.keeper.on_message(message, self.now)

    def lose(self, role, index=0, exit_code=-9):
        name = role if role == "scheduler" else f"{role} {index}"
        return self.keeper.on_death(Death(role, index, name, f"{name} died", exit_code, ("last",)), self.now)

    def tick(self, seconds=0.0, sign=None):
        self.now += seconds
        self.heartbeat += 1
        return self.keeper.on_tick([sign or FrontendSign(True, self.heartbeat)], self.now)

    def signal(self, count):
        return self.keeper.on_signal(count, self.now)


def without_logs(actions):
    return [action for action in actions if not isinstance(action, Log)]


def test_units_start_in_order_and_are_ready_only_all_together():
    kept = Kept()
    kept.keeper.begin(kept.now)
    assert kept.start_due() == [StartScheduler(), StartGroup(1), StartFrontend(0)]
    assert kept.start_due() == []
    assert kept.tick(5.0) == [Log("waiting for scheduler")]
    kept.hear(welcome(0, lives=False, state="starting"))
    assert kept.tick(5.0) == [Log("waiting for 2 worker(s)")]
    kept.hear(welcome(1))
    assert kept.tick(5.0, NOT_UP) == [Log("waiting for frontend 0")]
    assert kept.tick(0.1, UP) == [AnnounceReady(welcome(1))]
    assert kept.keeper.phase == "serving"


def test_a_start_that_fails_ends_the_engine():
    kept = Kept()
    kept.keeper.begin(kept.now)
    assert kept.start_due(failing={"group"}) == [StartScheduler(), Log("error: group cannot be started: no room")]
    assert kept.tick() == [Terminate("frontend"), Terminate("scheduler")]
    assert (kept.keeper.phase, kept.keeper.exit_code) == ("stopping", exit_codes.FAILED)


@pytest.mark.parametrize(
    ("exit_code", "last"), [(exit_codes.WORKER_REFUSED, "last"), (1, "last"), (-9, "worker 0 died")]
)
def test_the_last_words_are_the_process_own_unless_it_was_killed(exit_code, last):
    kept = Kept()
    kept.keeper.begin(kept.now)
    kept.start_due()
    kept.lose("worker", exit_code=exit_code)
    assert kept.keeper.failure.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(
    ("role", "status", "code"),
    [
        ("frontend", exit_codes.REFUSED, exit_codes.REFUSED),
        ("worker", exit_codes.WORKER_REFUSED, exit_codes.REFUSED),
        ("worker", exit_codes.REFUSED, exit_codes.FAILED),
        ("frontend", exit_codes.FAILED, exit_codes.FAILED),
    ],
)
def test_a_start_that_a_process_refuses_is_refused(role, status, code):
    kept = Kept()
    kept.keeper.begin(kept.now)
    kept.start_due()
    kept.lose(role, exit_code=status)
    assert kept.keeper.exit_code == code


def test_a_late_start_names_who_is_late():
    kept = Kept()
    kept.keeper.begin(kept.now)
    kept.start_due()
    kept.keeper.on_overslept(30.0)
    assert kept.tick(61.0) == [Log("waiting for scheduler")]  # half of it the loop itself stood still
    assert kept.tick(30.0)[0] == Log("error: not ready within 60 s: scheduler")


def test_a_dead_rank_ends_its_group_and_restarts_wait_longer_each_time():
    kept = Kept().serve()
    lost = kept.lose("worker", 1)
    assert without_logs(lost) == [Kill("worker"), Send(GroupLost(1, "worker 1 died"))]
    assert kept.start_due() == [StartGroup(2)]  # the first at once
    kept.hear(welcome(2))
    kept.lose("worker", 0)
    assert kept.start_due() == []
    kept.now += 1.0
    assert kept.start_due() == [StartGroup(3)]
    kept.hear(welcome(3))
    assert without_logs(kept.lose("worker", 0))[2:] == [
        Send(GroupFailed("group: more than 2 deaths in 300 s; worker 0 died")),
        Send(Drain(TIMERS.farewell)),
    ]
    assert kept.keeper.exit_code == exit_codes.FAILED


def test_a_dead_scheduler_takes_the_group_and_the_group_waits_for_it():
    kept = Kept().serve()
    assert without_logs(kept.lose("scheduler")) == [Kill("worker")]
    assert kept.start_due(failing={"scheduler"})[0] == Kill("worker")
    assert kept.start_due() == []
    kept.now += 1.0
    assert kept.start_due() == [StartScheduler(), StartGroup(2)]


def test_a_scheduler_started_during_a_drain_is_told_what_is_left_of_it():
    kept = Kept().serve()
    assert without_logs(kept.signal(1)) == [Send(Drain(20.0))]
    assert kept.signal(1) == []
    kept.now += 4.0
    kept.lose("scheduler")
    assert kept.start_due() == [StartScheduler(), Send(Drain(16.0)), StartGroup(2)]


@pytest.mark.parametrize("end", ["drained", "late"])
def test_a_drain_ends_in_order_and_what_stays_is_killed(end):
    kept = Kept().serve()
    kept.signal(1)
    if end == "drained":
        assert kept.hear(Drained(0)) == [Log("drained; 0 outputs were ended by the time-out")]
        told = kept.tick()
    else:
        kept.hear(SchedulerBeat(1, 1, is_idle=True))
        told = kept.tick(25.0)[1:]
    assert told == [Terminate("frontend")]
    assert kept.lose("frontend") == []
    assert kept.tick() == [Terminate("scheduler")]
    assert kept.tick(2.0) == [Terminate("worker")]  # the scheduler had its time
    kept.lose("worker", 0)
    assert kept.tick(1.0) == []
    assert kept.tick(2.0) == [Kill("frontend"), Kill("scheduler"), Kill("worker")]
    assert (kept.keeper.phase, kept.keeper.exit_code) == ("over", exit_codes.SUCCESS)


@pytest.mark.parametrize("leaves", [True, False])
def test_frontends_have_the_drains_time_for_what_they_still_prepare(leaves):
    kept = Kept().serve()
    kept.signal(1)
    kept.hear(Drained(0))
    assert kept.tick() == [Terminate("frontend")]
    assert kept.tick(20.0) == []
    if leaves:
        kept.lose("frontend")
    assert kept.tick(0.0 if leaves else 5.0) == [Terminate("scheduler")]


def test_a_second_signal_waits_for_nobody():
    kept = Kept().serve()
    kept.signal(1)
    kept.signal(2)
    everybody = ("frontend", "scheduler", "worker")
    assert kept.tick() == [*map(Terminate, everybody), *map(Kill, everybody)]
    assert kept.keeper.phase == "over"


def test_who_is_silent_too_long_is_killed_and_comes_back():
    kept = Kept().serve()
    for _ in range(9):
        assert kept.tick(1.0) == []
    killed = []
    while not killed:
        killed = without_logs(kept.tick(1.0))
    assert killed == [KillHung("scheduler", 0)]
    kept.lose("scheduler")
    assert kept.start_due() == [StartScheduler(), StartGroup(2)]


def test_equal_events_at_equal_times_give_equal_actions():
    def actions():
        kept = Kept().serve()
        return [kept.lose("worker", 1), kept.start_due(), kept.signal(1), kept.lose("scheduler"), kept.start_due()]

    assert actions() == actions()
