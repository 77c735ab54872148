"""Silence is counted where the watcher looked, from the last sign; before the first sign there is more patience."""

from quire.deploy.supervisor.pulse import Pulse


def test_signs_of_life_end_the_silence() -> None:
    pulse = Pulse(0.0)
    for tick in range(1, 101):
        pulse.look(tick // 10, tick / 10)  # a sign every second
        assert not pulse.is_lost(5.0, 2.0)
    for tick in range(101, 120):
        pulse.look(10, tick / 10)
    assert not pulse.is_lost(5.0, 2.0)
    pulse.look(10, 12.1)
    assert pulse.is_lost(5.0, 2.0)
    pulse.look(11, 12.2)
    assert pulse.silence == 0.0


def test_a_process_that_has_not_begun_gets_more_time() -> None:
    pulse = Pulse(0.0)
    for tick in range(50):
        pulse.look(0, tick / 10)
    assert not pulse.is_lost(5.0, 2.0)
    pulse.look(0, 5.2)
    assert pulse.is_lost(5.0, 2.0)


def test_what_the_watcher_slept_through_is_nobodys_silence() -> None:
    pulse = Pulse(0.0)
    pulse.look(1, 0.2)
    pulse.look(1, 3600.0)
    assert pulse.silence == 1.0
