"""Whether token ids are of a vocabulary."""

from array import array
from collections.abc import Sequence

import numpy as np


def is_within(ids: Sequence[int], width: int) -> bool:
    """Whether every id is in [0, width). A column is looked at in no time."""
    if not ids:
        return True
    if isinstance(ids, array):
        column = np.asarray(ids)
        return bool(column.min() >= 0 and column.max() < width)
    return min(ids) >= 0 and max(ids) < width


def first_outside(ids: Sequence[int], width: int) -> int | None:
    """The place of the first id that is not in [0, width), found without a loop of ours: a million may be asked for."""
    column = np.asarray(ids)
    outside = np.flatnonzero((column < 0) | (column >= width))
    return int(outside[0]) if len(outside) else None
