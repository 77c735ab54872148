"""The types of a step's tokens: which text of a pair each belongs to."""

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class TokenTypes:
    """The beginning of the second text in each slot's prompt; free of cost until a first pair comes."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._starts: Int64 | None = None
        """Index of each slot's first token of type 1; no token's where all are of type 0."""

    def admit(self, slot: int, second_text: int) -> None:
        """`second_text`: as in `Admit`."""
        if second_text and self._starts is None:
            self._starts = np.full(self._num_slots, np.iinfo(np.int64).max)
        if self._starts is not None:
            self._starts[slot] = second_text or np.iinfo(np.int64).max

    def of_rows(self, slots: Int64, computed: Int64, counts: Int64) -> Int64 | None:
        """1 for each token of a second text, 0 for others: [T]; None: all are 0.

        The rows' slots, tokens computed before the step and tokens that they run, [R] each.
        """
        if self._starts is None:
            return None
        first = np.cumsum(counts) - counts - computed
        positions = np.arange(counts.sum()) - np.repeat(first, counts)
        return (positions >= np.repeat(self._starts[slots], counts)).astype(np.int64)
