"""The functions that make answers of a head's raw numbers."""

import numpy as np
import numpy.typing as npt

from quire.proto.messages.heads import Activation

Numbers = npt.NDArray[np.float64]


def activated(raw: npt.NDArray[np.float32], kind: Activation) -> Numbers:
    """Numbers [labels] of raw ones: softmax over the labels, or the sigmoid of each."""
    numbers = raw.astype(np.float64)
    if kind == "softmax":
        powers = np.exp(numbers - numbers.max())
        return powers / powers.sum()
    if kind == "sigmoid":
        # of the side that does not overflow
        power = np.exp(-np.abs(numbers))
        return np.where(numbers >= 0, 1.0, power) / (1.0 + power)
    return numbers
