"""Two engines under one supervisor: what happens to the one does not happen to the other.

They stand in for several models in one deployment.
"""

import os
import signal

import pytest
from parts.clock import eventually

FAST = {"first_pause": 0.05}
NAMES = ("scheduler", "worker0", "worker1", "frontend0")


@pytest.fixture
def pair(deploy_together):
    """`pair(first={}, second={})`: both ready, with these settings besides."""

    def start(first=None, second=None):
        engines = deploy_together({"timers": FAST} | (first or {}), {"timers": FAST} | (second or {}))
        for engine in engines:
            engine.wait_for("ready")
        return engines

    return start


def pids(engine):
    return [engine.pid_of(name) for name in NAMES]


@pytest.mark.parametrize("who", ["worker0", "scheduler"])
def test_one_dies_and_comes_back_while_the_other_goes_on(pair, who):
    first, second = pair()
    others, before = pids(second), first.pid_of(who)
    first.kill(who)
    first.wait_for("group_ready", 2)
    assert first.pid_of(who) != before
    assert pids(second) == others
    assert [entry[3] for entry in second.events("group_ready")] == ["1"]
    assert second.events("group_lost") == []


def test_a_signal_drains_both(pair):
    engines = pair()
    os.kill(engines[0].process.pid, signal.SIGTERM)
    code, output = engines[0].finish()
    assert code == 0, output
    for engine in engines:
        order = [entry[1] for entry in engine.events("drain", "term")]
        assert order[:3] == ["scheduler", "frontend0", "scheduler"]
        assert sorted(order[3:]) == ["worker0", "worker1"]
        assert engine.living() == []


def test_a_second_signal_stops_both_at_once(pair):
    stuck = {"never_drained": True, "deaf": "worker0", "timers": FAST}
    engines = pair(stuck, stuck)
    os.kill(engines[0].process.pid, signal.SIGTERM)
    for engine in engines:
        engine.wait_for("drain")
    os.kill(engines[0].process.pid, signal.SIGTERM)
    assert engines[0].finish()[0] == 0
    assert [engine.living() for engine in engines] == [[], []]


def test_one_gives_up_while_the_other_serves_on_and_can_be_restarted(pair):
    """The first takes its time to stop, and nobody waits for it; in the end its failure is the exit code."""
    failing = {"world_size": 2, "deaf": "worker1", "timers": FAST | {"max_restarts": 0}}
    first, second = pair(failing)
    survivor = second.pid_of("frontend0")
    first.kill("scheduler")
    first.wait_for("term")
    second.kill("worker0")
    second.wait_for("group_ready", 2)
    assert second.pid_of("frontend0") == survivor
    eventually(lambda: not first.living())
    assert second.process.poll() is None
    second.process.send_signal(signal.SIGTERM)
    code, output = second.finish()
    assert code == 1
    assert "error: scheduler: more than 0 deaths in 300 s; scheduler was killed by SIGKILL" in output
    assert second.events("drain")
    assert second.living() == []


def test_a_death_during_the_start_of_one_leaves_the_other_starting(deploy_together):
    first, second = deploy_together({"timers": FAST, "die_from_epoch": 1}, {"timers": FAST})
    second.wait_for("ready")
    eventually(lambda: not first.living())
    second.process.send_signal(signal.SIGTERM)
    code, output = second.finish()
    assert code == 1
    assert "during the start; its last lines:" in output
    assert second.events("drain")
