"""The check that token ids are within a vocabulary."""

from array import array
from collections.abc import Sequence

import numpy as np


def is_within(ids: Sequence[int], width: int) -> bool:
    """True where every id is in [0, width); fast for a column."""
    if not ids:
        return True
    if isinstance(ids, array):
        column = np.asarray(ids)
        return bool(column.min() >= 0 and column.max() < width)
    return min(ids) >= 0 and max(ids) < width


def first_outside(ids: Sequence[int], width: int) -> int | None:
    """The position of the first id that is not in [0, width), found without a Python loop: there may be a million."""
    column = np.asarray(ids)
    outside = np.flatnonzero((column < 0) | (column >= width))
    return int(outside[0]) if len(outside) else None
