"""Outputs that wait for a slot and blocks, sorted by age and by length."""

from collections.abc import Iterator
from itertools import islice

from quire.scheduler.state.sequence import Sequence
from quire.scheduler.state.sorted_list import SortedList


class Waiting:
    """The same outputs in two lists. By age is by `Sequence.order`; by length is by priority, then known tokens."""

    def __init__(self) -> None:
        self._by_age = SortedList()
        self._by_length = SortedList()
        self.num_seqs = 0
        self.num_requests = 0
        """Requests with at least one output here."""
        self.num_tokens = 0
        """Prompt tokens of the requests with at least one output here."""
        self.typical_seconds = 0.0
        """Moving average of the time from arrival to the first slot."""

    def push(self, sequence: Sequence) -> None:
        self._by_age.add(sequence.order, sequence)
        self._by_length.add(_length(sequence), sequence)
        self._count(sequence, 1)

    def first(self) -> Sequence | None:
        """The first in order of all."""
        return self._by_age.first()

    def oldest(self, priority: int) -> Sequence | None:
        """The first in order of this priority."""
        found = self._by_age.at_least((priority,))
        return found if found is not None and found.request.priority == priority else None

    def shortest(self, priority: int, skip: int = 0) -> Sequence | None:
        """The output with the fewest known tokens of this priority, the older of equals, after `skip` shorter ones."""
        found = self._by_length.at_least((priority,), skip)
        return found if found is not None and found.request.priority == priority else None

    def next_priority(self, after: int | None) -> int | None:
        """The best priority of a waiting output: of all, or of those behind `after`."""
        found = self.first() if after is None else self._by_age.at_least((after + 1,))
        return None if found is None else found.request.priority

    def take(self, sequence: Sequence, now: float) -> None:
        """The output enters a slot."""
        self.discard(sequence)
        if sequence.first_ran_at < 0:
            self.typical_seconds += 0.1 * (now - sequence.request.arrived_at - self.typical_seconds)

    def discard(self, sequence: Sequence) -> None:
        """Take the output out of both lists."""
        self._by_age.remove(sequence.order)
        self._by_length.remove(_length(sequence))
        self._count(sequence, -1)

    def best(self, count: int) -> list[Sequence]:
        """The first `count` in order, without a look at the others."""
        return list(islice(self._by_age, count))

    def num_before(self, sequence: Sequence) -> int:
        """Number of waiting outputs that are before this one in order."""
        return self._by_age.num_before(sequence.order)

    def sequences(self) -> list[Sequence]:
        """All waiting outputs in order; for checks."""
        return list(self._by_age)

    def by_length(self) -> Iterator[Sequence]:
        """All waiting outputs by length, the best priority first; for checks."""
        return iter(self._by_length)

    def _count(self, sequence: Sequence, change: int) -> None:
        request = sequence.request
        self.num_seqs += change
        before = request.num_waiting
        request.num_waiting += change
        if before == 0 or request.num_waiting == 0:
            self.num_requests += change
            self.num_tokens += change * request.num_prompt


def _length(sequence: Sequence) -> tuple[int, int, int, int]:
    priority, arrival, output_index = sequence.order
    return priority, sequence.num_known, arrival, output_index
