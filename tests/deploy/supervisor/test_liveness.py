"""Silence is counted where the watcher looked, from the last sign; before the first sign there is more patience."""

from quire.deploy.supervisor.liveness import Liveness


def test_signs_of_life_end_the_silence() -> None:
    liveness = Liveness(0.0)
    for tick in range(1, 101):
        liveness.update(tick // 10, tick / 10)  # a sign every second
        assert not liveness.is_lost(5.0, 2.0)
    for tick in range(101, 120):
        liveness.update(10, tick / 10)
    assert not liveness.is_lost(5.0, 2.0)
    liveness.update(10, 12.1)
    assert liveness.is_lost(5.0, 2.0)
    liveness.update(11, 12.2)
    assert liveness.silence == 0.0


def test_a_process_that_has_not_begun_gets_more_time() -> None:
    liveness = Liveness(0.0)
    for tick in range(50):
        liveness.update(0, tick / 10)
    assert not liveness.is_lost(5.0, 2.0)
    liveness.update(0, 5.2)
    assert liveness.is_lost(5.0, 2.0)


def test_what_the_watcher_slept_through_is_nobodys_silence() -> None:
    liveness = Liveness(0.0)
    liveness.update(1, 0.2)
    liveness.update(1, 3600.0)
    assert liveness.silence == 1.0
