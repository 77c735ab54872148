"""A quantization as config.json states it, in the terms of the forms; and its fields, read with a check."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from quire.worker.fields import MAX_INTEGER, Config, shown
from quire.worker.quant.form import DENSE, UNIT, Form
from quire.worker.quant.read.packing import Packing
from quire.worker.weights.parts import ModelError

FIELD: Final = "quantization_config"
OTHERWISE: Final = (
    "use one of fp8, awq, gptq, modelopt or compressed-tensors, or unquantized weights with quantization fp8 or int4"
)
"""The remedy for what is not read."""
REMEDY: Final = "correct config.json, or download the checkpoint again"
"""The remedy for files that contradict what is stated."""

Grain = Literal["none", "tensor", "rows", "blocks"]
"""Weights that share a scale in the file."""


@dataclass(frozen=True, slots=True)
class LayerStated:
    """The form of one linear layer, and the names of what the file holds of it beside `weight`."""

    form: Form = DENSE
    grain: Grain = "none"
    scales: tuple[str, ...] = ()
    """Names that the scale may have; the file has one of them."""
    input_scales: tuple[str, ...] = ()
    """The same of the activations' scale; empty: there is none."""
    packing: Packing | None = None
    """The tensors that the file holds instead of a weight: codes in words."""
    finer: bool = False
    """Activations of 4 bits are stated beside it; what products take is finer."""
    is_stacked: bool = False
    """Matrices of all experts lie in one tensor."""
    may_be_dense: bool = False
    """The file decides: formats leave the output head as it is without saying so."""


class Stated(Protocol):
    """A quantization as a config.json states it. All names are the checkpoint's, of modules before they are merged."""

    @property
    def method(self) -> str:
        """Its name in config.json."""
        ...

    @property
    def kv_cache(self) -> bool:
        """A cache of 8-bit floats is stated."""
        ...

    def layer(self, module: str) -> LayerStated:
        """The statement about a linear layer."""
        ...


def section(config: Config, name: str, inside: str) -> Config:
    """An object within a config; absent and null are an empty one."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ModelError(f"{inside}.{name}", f"must be an object, got {shown(value)}; correct config.json")
    return value


def names(config: Config, name: str, inside: str = FIELD) -> tuple[str, ...]:
    """A list of names; absent and null are an empty one."""
    value = config.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ModelError(f"{inside}.{name}", f"must be a list of names, got {shown(value)}; correct config.json")
    return tuple(value)


def expect(config: Config, name: str, inside: str, allowed: Collection[Any], remedy: str = OTHERWISE) -> Any:
    """A value that must be one of `allowed`; absent is null."""
    value = config.get(name)
    if not any(value == one and type(value) is type(one) for one in allowed):
        known = ", ".join("null" if one is None else str(one) for one in allowed)
        raise ModelError(f"{inside}.{name}", f"{shown(value)} is not supported; supported: {known}; {remedy}")
    return value


def group_size(config: Config, inside: str) -> int | None:
    """`group_size`: whole units of inputs; -1: None, all of them."""
    value = config.get("group_size")
    if value == -1 and isinstance(value, int):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value % UNIT or value > MAX_INTEGER:
        raise ModelError(
            f"{inside}.group_size", f"{shown(value)} is not supported; supported: multiples of {UNIT}, -1; {OTHERWISE}"
        )
    return value
