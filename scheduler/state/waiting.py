"""Outputs that wait for a slot and blocks: by age, and by length."""

from collections.abc import Iterator
from itertools import islice

from quire.scheduler.state.order import Order
from quire.scheduler.state.sequence import Sequence


class Waiting:
    """Two orders of the same outputs. By age is by rank; by length, within a priority, is by known tokens."""

    def __init__(self) -> None:
        self._by_age = Order()
        self._by_length = Order()
        self.num_seqs = 0
        self.num_requests = 0
        """Requests with at least one output here."""
        self.num_tokens = 0
        """Prompt tokens of these requests."""
        self.typical_seconds = 0.0
        """Moving average of the time from arrival to the first slot."""

    def push(self, sequence: Sequence) -> None:
        self._by_age.add(sequence.rank, sequence)
        self._by_length.add(_length(sequence), sequence)
        self._count(sequence, 1)

    def first(self) -> Sequence | None:
        """The best ranked."""
        return next(iter(self._by_age), None)

    def oldest(self, priority: int) -> Sequence | None:
        """The best ranked of this priority."""
        found = next(self._by_age.at_least((priority,)), None)
        return found if found is not None and found.request.priority == priority else None

    def shortest(self, priority: int, skip: int = 0) -> Sequence | None:
        """The one with the fewest known tokens of this priority, the older of equals, when so many are skipped."""
        found = next(islice(self._by_length.at_least((priority,)), skip, None), None)
        return found if found is not None and found.request.priority == priority else None

    def next_priority(self, after: int | None) -> int | None:
        """The best priority of all, or behind that one, of which somebody waits."""
        found = self.first() if after is None else next(self._by_age.at_least((after + 1,)), None)
        return None if found is None else found.request.priority

    def take(self, sequence: Sequence, now: float) -> None:
        """It enters a slot."""
        self.discard(sequence)
        if sequence.first_ran_at < 0:
            self.typical_seconds += 0.1 * (now - sequence.request.arrived_at - self.typical_seconds)

    def discard(self, sequence: Sequence) -> None:
        """It is gone from here."""
        self._by_age.remove(sequence.rank)
        self._by_length.remove(_length(sequence))
        self._count(sequence, -1)

    def best(self, count: int) -> list[Sequence]:
        """The `count` best ranked, best first, without a look at the others."""
        return list(islice(self._by_age, count))

    def num_before(self, sequence: Sequence) -> int:
        """Outputs that wait and are before this one in rank."""
        return self._by_age.num_before(sequence.rank)

    def sequences(self) -> list[Sequence]:
        """All that wait, best rank first; for checks."""
        return list(self._by_age)

    def by_length(self) -> Iterator[Sequence]:
        """All that wait, the shortest of the best priority first; for checks."""
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
    priority, arrival, output_index = sequence.rank
    return priority, sequence.num_known, arrival, output_index
