"""Weights out of a seed: for benchmarks and tests where only shapes and speed matter."""

import hashlib
import math

import torch
from torch import nn

from quire.worker.weights.load import CONVERTIBLE, fill, places
from quire.worker.weights.names import NameMap, NameRule

SCALES = ("scale", "input_scale")
"""Names of parameters by which codes of 8 bits are multiplied."""
UNITS = ("unit", "minima_unit")
"""Names of what scales and minima are multiples of, where they are of 8 bits."""
ZEROS, MINIMA = "zeros", "minima"
"""Names of the parameters that are taken off codes without a sign: from the codes, or from their products."""
SCALE = 1 / 64
SAME_NAMES = NameMap((NameRule(r"(?P<path>.+)", "{path}"),))


class DummyWeights:
    """A source of normal values for the parts of a model, under their paths in it.

    Ranks hold slices of the same full tensors, whatever their number. Drawn where they go: one thread of the host takes
    a minute for eight billion. Kinds of device draw different ones.
    """

    def __init__(self, model: nn.Module, seed: int, device: torch.device) -> None:
        self._places = {place.path: place for place in places(model)}
        self._device = device
        self.origin = f"seed {seed}"
        self._seed = seed

    def names(self) -> tuple[str, ...]:
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].part.full_shape

    def dtype(self, name: str) -> None:
        return None

    def read(self, name: str, region: tuple[slice, ...]) -> torch.Tensor:
        """A region of a tensor that is drawn as a whole: float32, or codes of a quantized weight."""
        owner, _, parameter, part = self._places[name]
        dtype = self._places[name].parameter.dtype
        step = 1 if dtype in (torch.int8, torch.float8_e4m3fn) else SCALE  # such scales are multiples of a unit
        if parameter in (*SCALES, *UNITS):
            value = step if parameter in SCALES else SCALE
            return torch.full(part.full_shape, value, dtype=dtype, device=self._device)[region]
        half = self._places[name].module.levels.get(parameter, 0) // 2
        if parameter == ZEROS:
            return torch.full(part.full_shape, half, dtype=torch.uint8, device=self._device)[region]
        if parameter == MINIMA:
            return torch.full(part.full_shape, half * step, dtype=dtype, device=self._device)[region]
        key = f"{self._seed}/{owner}.{parameter}/{part.name}".encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1
        generator = torch.Generator(self._device).manual_seed(number)
        values = torch.randn(part.full_shape, generator=generator, device=self._device)
        if len(part.axes) > 1:
            values.div_(math.sqrt(part.full_shape[-1]))  # keeps the size of what flows through
            if dtype in CONVERTIBLE:
                return values[region]
            most = min(half or 128, 128) - 1
            return values.div_(SCALE).clamp_(-most, most).add_(half).to(dtype)[region]
        gain = 1.0 if parameter == "weight" else 0.0  # a norm's gain is near one, a bias near zero
        return (gain + 0.02 * values)[region]


def fill_dummy(model: nn.Module, seed: int, device: torch.device) -> None:
    """Fill every parameter with dummy weights, and finish every module."""
    fill(model, DummyWeights(model, seed, device), SAME_NAMES, device)
