"""Waits for launched steps in a thread of its own, so that the thread that launches never waits for the device."""

import os
import queue
import threading
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from quire.proto.messages.plans import StepResult

F = TypeVar("F", contravariant=True)


class CollectStep(Protocol[F]):
    def __call__(self, step: F) -> StepResult:
        """Wait for a launched step."""
        ...


class ResultThread(Generic[F]):
    """Steps go in, results come out in the same order; `descriptor` is readable while there are any."""

    def __init__(self, collect: CollectStep[F]) -> None:
        self._collect = collect
        self._steps: queue.SimpleQueue[F | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[StepResult | Exception] = queue.SimpleQueue()
        self.descriptor = os.eventfd(0, os.EFD_SEMAPHORE)
        self.num_waiting = 0
        """Steps put in whose results were not taken out."""
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    def __enter__(self) -> "ResultThread[F]":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # after a failure the thread may wait for a device that never answers: it ends with the process
        self._steps.put(None)
        if kind is None:
            self._thread.join()
            os.close(self.descriptor)

    def put(self, step: F) -> None:
        self.num_waiting += 1
        self._steps.put(step)

    def take(self) -> StepResult:
        """The oldest result, waiting for it if need be. Raises what collecting it raised."""
        result = self._results.get()
        os.eventfd_read(self.descriptor)  # its count follows by a moment, so this may wait for it
        self.num_waiting -= 1
        if isinstance(result, Exception):
            raise result
        return result

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            try:
                result: StepResult | Exception = self._collect(step)
            except Exception as error:  # the launching thread raises it
                result = error
            self._results.put(result)
            os.eventfd_write(self.descriptor, 1)
