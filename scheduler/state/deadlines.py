"""The deadlines of live requests."""

import heapq

from quire.scheduler.state.sequence import Request

MAX_DEAD = 64
"""Entries of ended requests that the heap may keep beside its live ones before it is rebuilt."""


class Deadlines:
    """A heap of (deadline, arrival, request); ended requests are dropped lazily."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._num_live = 0

    def __len__(self) -> int:
        return self._num_live

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, (request.deadline, request.arrival, request))
        self._num_live += 1

    def discard(self, request: Request) -> None:
        """Discount a request that has ended: its `num_live` is 0."""
        self._num_live -= 1
        if len(self._heap) > 2 * self._num_live + MAX_DEAD:
            self._heap = [entry for entry in self._heap if entry[2].num_live]
            heapq.heapify(self._heap)

    def expired(self, now: float) -> list[Request]:
        """Take out every live request whose deadline is now or past; `discard` still follows for each."""
        found: list[Request] = []
        heap = self._heap
        while heap and (heap[0][0] <= now or not heap[0][2].num_live):
            request = heapq.heappop(heap)[2]
            if request.num_live:
                found.append(request)
        return found
