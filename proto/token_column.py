"""Token ids of a request as one column of memory: eight bytes for each, where a list of numbers takes forty."""

from array import array
from collections.abc import Sequence

STEP = 4096
"""Ids that are converted in one call; between two of them another thread may take the interpreter."""


def token_column(ids: Sequence[int]) -> Sequence[int]:
    """Token ids as an int64 column; unchanged where one of them is wider, which no vocabulary has."""
    column = array("q")
    try:
        for start in range(0, len(ids), STEP):
            column.extend(ids[start : start + STEP])
    except OverflowError:
        return ids
    return column
