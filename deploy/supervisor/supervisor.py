"""The supervisor keeps engines alive: one loop, one thread over all their processes; every wait has a bound.

A peer of the schedulers, never in the way of a token. What it does to an engine, the engine's keeper decides.
"""

import os
import time
from collections.abc import Sequence

import zmq

from quire.deploy.supervisor.signals import StopSignals
from quire.deploy.supervisor.supervised_engine import SupervisedEngine
from quire.proto.process import exit_codes


class Supervisor:
    """`run` returns when nothing is left running: the exit code of the first engine that did not end well, if any.

    An engine that has ended stays ended, and the others go on. A stop signal is for all of them.
    """

    def __init__(self, engines: Sequence[SupervisedEngine], signals: StopSignals) -> None:
        """`signals`: those that came before count as well."""
        self._engines = engines
        self._tick_seconds = min(engine.tick_seconds for engine in engines)
        self._signals = signals

    def run(self) -> int:
        with self._signals.counted():
            try:
                for engine in self._engines:
                    engine.begin()
                self._run_until_over()
            finally:
                self._end()
        return next((engine.exit_code for engine in self._engines if engine.exit_code), exit_codes.SUCCESS)

    def _run_until_over(self) -> None:
        while living := [engine for engine in self._engines if not engine.is_over]:
            poller = zmq.Poller()
            for engine in living:
                engine.register(poller)
            due = time.monotonic() + self._tick_seconds
            poller.poll(int(self._tick_seconds * 1000))
            # by what the wait took longer we stood still, most likely with everybody else
            overslept = max(0.0, time.monotonic() - due)
            for engine in living:
                engine.turn(overslept, self._signals.count)
            self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Reap what others have left to us, as the kernel does with all of a container if we are its process 1."""
        ours = set[int]().union(*(engine.pids for engine in self._engines))
        while (ended := _ended_child()) is not None and ended not in ours:  # ours are reaped in a turn of their engine
            os.waitpid(ended, 0)

    def _end(self) -> None:
        """All engines are over, unless an error of ours is on its way out: even then they end in order."""
        try:
            for engine in self._engines:
                engine.stop()
            self._run_until_over()
        finally:
            for engine in self._engines:
                engine.close()


def _ended_child() -> int | None:
    """A child that has ended and was not reaped."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended is not None else None
