"""Weights out of a seed: for benchmarks and tests where only shapes and speed matter."""

import hashlib
import math

import torch
from torch import nn

from quire.worker.weights.load import materialise, places
from quire.worker.weights.names import ParameterPart
from quire.worker.weights.shard import ShardPart


def fill_dummy(model: nn.Module, seed: int, device: torch.device) -> None:
    """Materialise and fill with normal values. Ranks hold slices of the same full tensors, whatever their number.

    Drawn where they go: one thread of the host takes a minute for eight billion. Kinds of device draw different ones.
    """
    materialise(model, device)
    for target, (parameter, part) in places(model):
        parameter[part.rows].copy_(_full_tensor(target, part, seed, device)[part.region])


def _full_tensor(target: ParameterPart, part: ShardPart, seed: int, device: torch.device) -> torch.Tensor:
    shape = part.full_shape
    key = f"{seed}/{target.parameter}/{target.part}".encode()
    number = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1
    values = torch.randn(shape, generator=torch.Generator(device).manual_seed(number), device=device)
    if len(shape) > 1:
        return values.div_(math.sqrt(shape[-1]))  # keeps the size of what flows through
    gain = 1.0 if target.parameter.endswith(".weight") else 0.0  # a norm's gain is near one, a bias near zero
    return gain + 0.02 * values
