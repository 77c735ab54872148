"""A histogram that costs a bisection and two additions; what is exported of it is made when somebody looks."""

from bisect import bisect_left

from quire.proto.messages.introspection import Distribution


class Histogram:
    """`counts[i]` values were in (bounds[i - 1], bounds[i]]; the last count is of those beyond all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def distribution(self, name: str) -> Distribution:
        return Distribution(name, self.bounds, tuple(self.counts), self.sum)
