"""The functions that make answers of a head's raw numbers."""

import numpy as np
import numpy.typing as npt

from quire.proto.messages.heads import Activation

Numbers = npt.NDArray[np.float64]


def activated(raw: npt.NDArray[np.float32], kind: Activation) -> Numbers:
    """Numbers [..., labels] of raw ones: softmax over the labels, or the sigmoid of each."""
    numbers: Numbers = raw.astype(np.float64)
    if kind == "softmax":
        numbers = np.exp(numbers - numbers.max(-1, keepdims=True))
        numbers /= numbers.sum(-1, keepdims=True)
    if kind == "sigmoid":
        # of the side that does not overflow
        power = np.exp(-np.abs(numbers))
        numbers = np.where(numbers >= 0, 1.0, power) / (1.0 + power)
    return numbers
