"""Selects the scheme of a quantization by its name."""

import torch

from quire.kernels.linear.linear_int8 import linear_int8
from quire.worker.config import Quantization
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.shard import ModelError


def scheme_for(quantization: Quantization, device: torch.device) -> Scheme:
    """Raises ModelError where the device has no fast form of the product."""
    if quantization == "none":
        return DenseScheme()
    if linear_int8.implementation(device.type) is linear_int8.reference:
        raise ModelError(
            "quantization", f"int8 needs the CPU backend; on {device.type} choose quantization none, or device cpu"
        )
    return Int8Scheme()
