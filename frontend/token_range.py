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
