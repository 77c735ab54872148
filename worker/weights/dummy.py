"""Weights out of a seed: for benchmarks and tests where only shapes and speed matter."""

import hashlib
import math

import torch
from torch import nn

from quire.worker.weights.load import Place, materialise, places


def fill_dummy(model: nn.Module, seed: int, device: torch.device) -> None:
    """Materialise and fill with normal values. Ranks hold slices of the same full tensors, whatever their number.

    Drawn where they go: one thread of the host takes a minute for eight billion. Kinds of device draw different ones.
    """
    materialise(model, device)
    for place in places(model):
        part = place.part
        part.of(place.parameter).copy_(_full_tensor(place, seed, device)[part.region])


def _full_tensor(place: Place, seed: int, device: torch.device) -> torch.Tensor:
    shape = place.part.full_shape
    key = f"{seed}/{place.owner}.{place.name}/{place.part.name}".encode()
    number = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1
    values = torch.randn(shape, generator=torch.Generator(device).manual_seed(number), device=device)
    if len(shape) > 1:
        return values.div_(math.sqrt(shape[-1]))  # keeps the size of what flows through
    gain = 1.0 if place.name == "weight" else 0.0  # a norm's gain is near one, a bias near zero
    return gain + 0.02 * values
