"""Formats that are not read, by their names in config.json, and what to use instead."""

from typing import Final

from quire.worker.fields import shown
from quire.worker.quant.read.stated import FIELD, OTHERWISE
from quire.worker.weights.parts import ModelError

_ON_THE_FLY: Final = "its codes are made when a model is loaded; use the unquantized checkpoint with quantization fp8"
_OWN_LAYOUT: Final = f"its codes need products of their own; {OTHERWISE}"
METHODS: Final[dict[str, str]] = {
    "auto-round": f"its own layout is not read; export it as auto_gptq or auto_awq, or {OTHERWISE}",
    "bitsandbytes": _ON_THE_FLY,
    "hqq": _ON_THE_FLY,
    "eetq": _ON_THE_FLY,
    "quanto": _ON_THE_FLY,
    "torchao": "its tensors are objects of Python, which are never run; use the unquantized checkpoint",
    "mlx": f"its layout is not read; {OTHERWISE}",
    "aqlm": _OWN_LAYOUT,
    "quip": _OWN_LAYOUT,
    "quark": _OWN_LAYOUT,
    "exl2": _OWN_LAYOUT,
    "exl3": _OWN_LAYOUT,
    "vptq": _OWN_LAYOUT,
    "higgs": _OWN_LAYOUT,
    "spqr": _OWN_LAYOUT,
    "bitnet": _OWN_LAYOUT,
}


def refuse_method(method: object) -> ModelError:
    """The error of a method that no reader knows."""
    why = METHODS.get(method, OTHERWISE) if isinstance(method, str) else OTHERWISE
    return ModelError(FIELD, f"method {shown(method)} is not supported: {why}")
