"""Outputs that wait for a slot and blocks, best rank first."""

import heapq

from quire.scheduler.sequence import Sequence

MAX_DEAD = 64
"""Ended entries a heap may keep beside its live ones before it is rebuilt."""


class Waiting:
    """A heap with lazy deletion: an entry whose output no longer waits is skipped, and dropped when they get many."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Sequence]] = []
        self.num_seqs = 0
        self.num_requests = 0
        """Requests with at least one output here."""
        self.num_tokens = 0
        """Prompt tokens of these requests."""
        self.typical_seconds = 0.0
        """Moving average of the time from arrival to the first slot."""

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (*sequence.rank, sequence))
        self._count(sequence, 1)

    def first(self) -> Sequence | None:
        heap = self._heap
        while heap and heap[0][3].state != "waiting":
            heapq.heappop(heap)
        return heap[0][3] if heap else None

    def pop(self, now: float) -> Sequence:
        """Take out what `first` returned."""
        sequence = heapq.heappop(self._heap)[3]
        self._count(sequence, -1)
        if sequence.first_ran_at < 0:
            self.typical_seconds += 0.1 * (now - sequence.request.arrived_at - self.typical_seconds)
        return sequence

    def discard(self, sequence: Sequence) -> None:
        """It ended while waiting; its state already says so."""
        self._count(sequence, -1)
        if len(self._heap) > 2 * self.num_seqs + MAX_DEAD:
            self._heap = [entry for entry in self._heap if entry[3].state == "waiting"]
            heapq.heapify(self._heap)

    def best(self, count: int) -> list[Sequence]:
        """The `count` best ranked, best first, without a look at the others: the heap is walked from its top."""
        found: list[Sequence] = []
        heap = self._heap
        border = [(heap[0][:3], 0)] if heap else []
        while border and len(found) < count:
            _, place = heapq.heappop(border)
            if heap[place][3].state == "waiting":
                found.append(heap[place][3])
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heapq.heappush(border, (heap[child][:3], child))
        return found

    def num_before(self, sequence: Sequence) -> int:
        """Outputs that wait and are before this one in rank."""
        rank = sequence.rank
        return sum(1 for entry in self._heap if entry[:3] < rank and entry[3].state == "waiting")

    def sequences(self) -> list[Sequence]:
        """All that wait, in no order; for checks."""
        return [entry[3] for entry in self._heap if entry[3].state == "waiting"]

    def _count(self, sequence: Sequence, change: int) -> None:
        request = sequence.request
        self.num_seqs += change
        before = request.num_waiting
        request.num_waiting += change
        if before == 0 or request.num_waiting == 0:
            self.num_requests += change
            self.num_tokens += change * request.num_prompt
