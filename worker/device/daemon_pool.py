"""Daemon threads that run what they are given: they end with the process, whatever they wait for.

The process must end by `quire.proto.process.process_exit`: one of them may be in the middle of a library's code.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class DaemonPool:
    """Work is begun in the order in which it came; the threads start with the first.

    Where none can be started any more, the caller does it: a pause of one step, not the end of the worker.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._num_started = 0

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Queue a call; the future gets its result or exception. Call it from one thread only."""
        if not self._num_started:
            self._start()
        future: Future[R] = Future()

        def work() -> None:
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # whoever waits for it raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        if self._num_started:
            self._work.put(work)
        else:
            work()
        return future

    def _start(self) -> None:
        with suppress(RuntimeError):  # the limit of processes and threads is reached
            while self._num_started < self._num_threads:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._num_started += 1

    def _run(self) -> None:
        while True:
            self._work.get()()
