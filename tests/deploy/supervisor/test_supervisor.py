"""What happens when processes die, hang, refuse or are told to stop."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from parts.clock import GUARD, eventually

FAST = {"first_pause": 0.05}
SUSPENDED = str(9 * GUARD)
"""Seconds that pass while the supervisor waits, longer than any of its timers."""


def test_start_and_sigterm_drain_then_stop_in_order_with_exit_code_0(deploy):
    engine = deploy(num_frontends=2, timers=FAST)
    engine.wait_for("ready")
    os.kill(engine.process.pid, signal.SIGTERM)
    code, output = engine.finish()
    assert code == 0, output
    order = [entry[1] for entry in engine.events("drain", "term")]
    assert sorted(order[1:3]) == ["frontend0", "frontend1"]
    assert order[0] == "scheduler"
    assert order[3] == "scheduler"
    assert sorted(order[4:]) == ["worker0", "worker1"]
    assert engine.events("drain")[0][3] == "45.0"
    assert engine.living() == []


def test_a_dead_worker_ends_its_group_and_a_new_epoch_starts(deploy):
    engine = deploy(timers=FAST)
    engine.wait_for("ready")
    survivor = engine.pid_of("worker1")
    engine.kill("worker0")
    engine.wait_for("group_ready", 2)
    assert engine.events("group_lost")[0][3:] == ["1", "worker", "0", "was", "killed", "by", "SIGKILL"]
    assert [entry[3] for entry in engine.events("group_ready")] == ["1", "2"]
    assert survivor not in {engine.pid_of("worker0"), engine.pid_of("worker1")}
    starts = {(entry[1], entry[3]) for entry in engine.events("start") if entry[1].startswith("worker")}
    assert starts == {("worker0", "1"), ("worker1", "1"), ("worker0", "2"), ("worker1", "2")}


def test_the_old_group_is_gone_before_the_new_one_is_ready(deploy):
    engine = deploy(timers=FAST)
    engine.wait_for("ready")
    old = [engine.pid_of("worker0"), engine.pid_of("worker1")]
    engine.kill("worker1")
    engine.wait_for("group_ready", 2)
    assert not [who for who in old if os.path.exists(f"/proc/{who}")]


def test_a_group_the_scheduler_gave_up_is_replaced(deploy):
    engine = deploy(timers=FAST)
    engine.wait_for("ready")
    engine.say("give_up_group")
    engine.wait_for("group_ready", 2)
    assert engine.events("group_lost")[0][3] == "1"


def test_a_used_up_restart_budget_fails_the_group_and_exits_1_with_the_reason(deploy):
    engine = deploy(timers=FAST | {"max_restarts": 2}, world_size=1)
    engine.wait_for("ready")
    for count in (1, 2, 3):
        engine.wait_for("group_ready", count)
        engine.kill("worker0")
        engine.wait_for("group_lost", count)
    code, output = engine.finish()
    assert code == 1
    assert len(engine.events("group_failed")) == 1
    assert "more than 2 deaths in 300 s; worker 0 was killed by SIGKILL" in output
    assert engine.living() == []


def test_a_dead_scheduler_is_replaced_with_a_new_group_of_a_higher_epoch(deploy):
    engine = deploy(timers=FAST)
    engine.wait_for("ready")
    workers = {engine.pid_of("worker0"), engine.pid_of("worker1")}
    frontend = engine.pid_of("frontend0")
    engine.kill("scheduler")
    engine.wait_for("group_ready", 2)
    assert engine.events("group_ready")[1][3] == "2"
    assert workers.isdisjoint({engine.pid_of("worker0"), engine.pid_of("worker1")})
    assert engine.pid_of("frontend0") == frontend  # frontends reconnect by themselves
    assert [name for name in engine.living() if name == "scheduler"] == ["scheduler"]


def test_a_drain_asked_for_between_two_schedulers_reaches_the_second(deploy) -> None:
    engine = deploy(timers={"first_pause": 1.5})
    engine.wait_for("ready")
    engine.kill("scheduler")
    engine.wait_for("group_ready", 2)
    engine.kill("scheduler")  # the second restart waits
    eventually(lambda: "worker1" not in engine.living())
    os.kill(engine.process.pid, signal.SIGTERM)
    code, output = engine.finish()
    assert code == 0, output
    assert len(engine.events("drain")) == 1
    assert engine.living() == []


def test_a_hung_scheduler_is_killed_and_replaced(deploy):
    engine = deploy(timers=FAST | {"silence": 1.0, "max_restarts": 1000})
    engine.wait_for("ready")
    hung = engine.pid_of("scheduler")
    os.kill(hung, signal.SIGSTOP)
    eventually(lambda: engine.pid_of("scheduler") != hung)
    engine.wait_for("group_ready", 2)


def test_a_hung_frontend_alone_is_killed_and_replaced(deploy):
    engine = deploy(num_frontends=2, timers=FAST | {"frontend_silence": 0.5})
    engine.wait_for("ready")
    others = [engine.pid_of(who) for who in ("frontend0", "scheduler")]
    before = engine.pid_of("frontend1")
    os.kill(before, signal.SIGSTOP)
    engine.say("hung-1")
    eventually(lambda: engine.pid_of("frontend1") != before)
    assert not os.path.exists(f"/proc/{before}")
    engine.kill("worker0")  # a turn that sees another death would see theirs, too
    engine.wait_for("group_ready", 2)
    assert [engine.pid_of(who) for who in ("frontend0", "scheduler")] == others
    assert len(engine.events("group_lost")) == 1


def test_a_machine_that_was_suspended_kills_nobody(deploy):
    """All stood still, the supervisor with them: silence is counted in its own turns."""
    engine = deploy(timers=FAST)
    engine.wait_for("ready")
    others = [engine.pid_of(who) for who in ("frontend0", "scheduler")]
    engine.say("asleep", SUSPENDED)
    engine.wait_until_heard("asleep")
    engine.kill("worker0")  # in a later turn
    engine.wait_for("group_ready", 2)
    assert [engine.pid_of(who) for who in ("frontend0", "scheduler")] == others
    assert len(engine.events("group_lost")) == 1


@pytest.mark.parametrize("phase", ["start", "drain"])
def test_a_machine_that_was_suspended_is_late_for_no_deadline(deploy, phase):
    """Neither the start's nor the drain's: they are put off by as much as the supervisor stood still."""
    engine = deploy(slow=phase == "start", never_drained=True, timers=FAST | {"drain": GUARD})
    engine.wait_for("start" if phase == "start" else "ready")
    if phase == "drain":
        os.kill(engine.process.pid, signal.SIGTERM)
        engine.wait_for("drain")
    engine.say("asleep", SUSPENDED)
    engine.wait_until_heard("asleep")
    engine.say("go" if phase == "start" else "give_up_group")
    engine.wait_for("group_ready", 1 if phase == "start" else 2)
    if phase == "start":
        engine.wait_for("ready")
        engine.process.terminate()
        engine.wait_for("drain")
    os.kill(engine.process.pid, signal.SIGTERM)
    code, output = engine.finish()
    assert (code, "time is over" in output) == (0, False)


def test_a_dead_frontend_alone_is_restarted(deploy):
    engine = deploy(num_frontends=2, timers=FAST)
    engine.wait_for("ready")
    others = [engine.pid_of(who) for who in ("frontend0", "scheduler", "worker0", "worker1")]
    before = engine.pid_of("frontend1")
    engine.kill("frontend1")
    eventually(lambda: engine.pid_of("frontend1") != before)
    assert [engine.pid_of(who) for who in ("frontend0", "scheduler", "worker0", "worker1")] == others


@pytest.mark.parametrize("who", ["worker1", "scheduler", "frontend0"])
def test_what_cannot_be_started_again_is_tried_later_and_ends_nobody_else(deploy, who):
    """A full disk, no process, no descriptor: a restart that fails is a death like any other."""
    deployment = deploy(timers=FAST | {"max_restarts": 50})
    deployment.wait_for("ready")
    deployment.say("full")
    starts = len(deployment.events("start"))
    deployment.kill(who)
    deployment.wait_for("no_room", 3)
    assert deployment.process.poll() is None
    assert len(deployment.events("start")) == starts
    (deployment.directory / "full").unlink()
    eventually(lambda: len([entry for entry in deployment.events("start") if entry[1] == who]) == 2)
    deployment.wait_for("group_ready", 1 if who == "frontend0" else 2)
    deployment.process.send_signal(signal.SIGTERM)
    _, output = deployment.finish()
    assert "cannot be started: [Errno 28]" in output


def test_a_scheduler_that_can_never_be_started_again_ends_the_engine_in_order(deploy):
    """The group was due in the same turn: it waits for its scheduler, and is not missed when all is given up."""
    deployment = deploy(timers=FAST | {"max_restarts": 2})
    deployment.wait_for("ready")
    deployment.say("full")
    deployment.kill("scheduler")
    code, output = deployment.finish()
    assert code == 1
    assert "error: scheduler: more than 2 deaths in 300 s; scheduler cannot be started: [Errno 28]" in output
    assert "Traceback" not in output
    assert "group cannot be started" not in output
    assert deployment.living() == []


def test_a_group_the_scheduler_gives_up_during_a_drain_is_replaced(deploy):
    engine = deploy(never_drained=True, timers=FAST | {"drain": GUARD})
    engine.wait_for("ready")
    os.kill(engine.process.pid, signal.SIGTERM)
    engine.wait_for("drain")
    engine.say("give_up_group")
    engine.wait_for("group_ready", 2)
    assert engine.events("group_lost")[0][3] == "1"
    os.kill(engine.process.pid, signal.SIGTERM)
    assert engine.finish()[0] == 0


def test_a_scheduler_that_dies_during_a_drain_is_replaced_and_told_of_it(deploy):
    engine = deploy(never_drained=True, timers=FAST | {"drain": GUARD})
    engine.wait_for("ready")
    os.kill(engine.process.pid, signal.SIGTERM)
    engine.wait_for("drain")
    engine.kill("scheduler")
    engine.wait_for("group_ready", 2)
    engine.wait_for("drain", 2)
    assert float(engine.events("drain")[1][3]) < GUARD
    os.kill(engine.process.pid, signal.SIGTERM)
    assert engine.finish()[0] == 0
    assert engine.living() == []


def test_a_death_during_the_start_stops_all_and_shows_the_last_lines(deploy):
    engine = deploy(die_from_epoch=1, timers=FAST)
    code, output = engine.finish()
    assert code == 1
    assert re.search(r"error: worker \d ended with exit code 3 during the start; its last lines:", output)
    assert "\n  this worker says why it leaves" in output
    assert re.search(r"\[worker \d\] the weights are not good", output)
    assert engine.living() == []


def test_a_refused_model_exits_2_without_a_restart(deploy):
    engine = deploy(die_from_epoch=1, exit_code=5, world_size=1, timers=FAST)
    code, output = engine.finish()
    assert code == 2, output
    assert "worker 0 refused this model or configuration; its last lines:\n" in output
    assert len([entry for entry in engine.events("start") if entry[1] == "worker0"]) == 1


def test_a_refusal_of_a_restarted_worker_is_final(deploy):
    engine = deploy(die_from_epoch=2, exit_code=5, world_size=1, timers=FAST)
    engine.wait_for("ready")
    engine.kill("worker0")
    code, output = engine.finish()
    assert code == 1
    assert "refused the model or its configuration" in output
    assert len(engine.events("group_failed")) == 1


def test_a_start_that_takes_too_long_names_who_is_late(deploy):
    engine = deploy(world_size=0, timers=FAST | {"startup": 2.0, "progress": 0.5})
    code, output = engine.finish()
    assert code == 1
    assert re.search(r"not ready within 2 s: (0 worker\(s\)|scheduler)\n", output)
    assert "waiting for " in output
    assert engine.living() == []


def test_a_drain_that_never_ends_is_cut_off(deploy):
    engine = deploy(never_drained=True, timers=FAST | {"drain": 0.3, "drain_margin": 0.2})
    engine.wait_for("ready")
    os.kill(engine.process.pid, signal.SIGINT)
    code, output = engine.finish()
    assert code == 0
    assert "the drain's time is over" in output


def test_a_second_signal_stops_at_once(deploy):
    engine = deploy(never_drained=True, deaf="worker0", timers=FAST)
    engine.wait_for("ready")
    os.kill(engine.process.pid, signal.SIGTERM)
    engine.wait_for("drain")
    os.kill(engine.process.pid, signal.SIGTERM)
    code, _ = engine.finish()
    assert code == 0
    assert engine.living() == []


def test_a_child_that_ignores_sigterm_is_killed(deploy):
    engine = deploy(deaf="worker0", timers=FAST | {"stop_grace": 1.0})
    engine.wait_for("ready")
    os.kill(engine.process.pid, signal.SIGTERM)
    assert engine.finish()[0] == 0
    assert engine.living() == []


@pytest.mark.parametrize("moment", ["start", "ready"])
def test_nothing_survives_a_killed_supervisor(deploy, moment):
    """A real start, not a fork: each process ties itself to who started it."""
    engine = deploy(deaf="worker1", timers=FAST, popen=subprocess.Popen)
    engine.wait_for(moment)
    engine.process.kill()
    engine.process.wait()
    eventually(lambda: not engine.living())


def test_a_signal_that_was_ignored_at_the_start_stays_ignored(deploy):
    """`nohup` ignores SIGHUP, and a shell SIGINT for what it starts in the background."""
    engine = deploy(ignored=["SIGHUP", "SIGINT"], timers=FAST)
    engine.wait_for("ready")
    for number in (signal.SIGHUP, signal.SIGINT):
        os.kill(engine.process.pid, number)
    engine.kill("worker0")
    engine.wait_for("group_ready", 2)
    assert not engine.events("drain")
    os.kill(engine.process.pid, signal.SIGTERM)
    assert engine.finish()[0] == 0


def test_an_engine_whose_log_nobody_reads_goes_on_and_hears_signals(deploy):
    """Its pipe is full, and so much waits beside that lines are left out."""
    engine = deploy(num_lines=2_000, most_log_bytes=16 << 10, timers=FAST)
    engine.wait_for("ready")
    engine.kill("frontend0")
    eventually(lambda: len([entry for entry in engine.events("start") if entry[1] == "frontend0"]) == 2)
    os.kill(engine.process.pid, signal.SIGTERM)
    engine.wait_for("drain")
    eventually(lambda: not engine.living())
    code, output = engine.finish()
    assert code == 0
    assert re.search(r"^\d+ lines were left out here: nobody read this log", output, re.MULTILINE)


def test_orphans_of_others_are_reaped(deploy):
    """The supervisor takes them over as process 1 of a container does."""
    engine = deploy(reaps=True, timers=FAST)
    engine.wait_for("orphan")
    orphan = Path("/proc", engine.events("orphan")[0][2])
    eventually(lambda: not orphan.exists())
    os.kill(engine.process.pid, signal.SIGTERM)
    engine.finish()
