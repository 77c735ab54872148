"""The tensors of a quantized layer, found in the files' headers and held against what config.json states."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quire.worker.quant.form import BLOCK, DENSE, F8Blocks, F8Rows, Form, Groups, Int8Rows
from quire.worker.quant.read.packed_headers import PackedLayer, packed_layer
from quire.worker.quant.read.stacked.headers import BLOCKS, StackedLayer, stacked_layer
from quire.worker.quant.read.stated import FIELD, REMEDY, Grain, LayerStated
from quire.worker.weights.header import FLOATS, TensorInfo
from quire.worker.weights.parts import ModelError

CODES: Final[dict[type[Form], str]] = {F8Rows: "F8_E4M3", F8Blocks: "F8_E4M3", Int8Rows: "I8"}
SCALES: Final = (*FLOATS, "F8_E8M0")
NAMES: Final = (
    *("weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "scale"),
    *("input_scale", "input_global_scale", "activation_scale"),
)
"""Tensors that only a quantized layer has."""
PACKED: Final = ("weight_packed", "qweight")
"""Tensors that a layer has in place of its weight."""
WEIGHT: Final = "weight"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """Names in the file of a quantized layer's tensors beside its weight."""

    scale: str
    grain: Grain
    input_scale: str | None


AnyStored = StoredLayer | PackedLayer | StackedLayer


def linear_modules(infos: Mapping[str, TensorInfo]) -> list[str]:
    """Names of what has a weight, or codes in place of it."""
    split = (name.rpartition(".") for name in infos)
    found = [module for module, _, tensor in split if tensor == WEIGHT or tensor in PACKED]
    stacked = [name.removesuffix(BLOCKS) for name in infos if name.endswith(BLOCKS)]
    return list(dict.fromkeys((*found, *stacked)))


def stored_layer(
    module: str, stated: LayerStated, infos: Mapping[str, TensorInfo], contents: Mapping[str, bytes]
) -> AnyStored | None:
    """The quantized layer at `module`, one of `linear_modules`; None where it is dense.

    `contents`: of the tensors that hold inputs' groups. Raises ModelError where the headers contradict what is stated.
    """
    is_stacked = f"{module}{BLOCKS}" in infos
    if is_stacked != stated.is_stacked:
        name = f"{module}{BLOCKS}" if is_stacked else f"{module}.{WEIGHT}"
        raise ModelError(name, f"is there, but {FIELD} states another form; {REMEDY}")
    if is_stacked:
        return stacked_layer(module, infos)
    held = [name for name in (WEIGHT, *PACKED) if f"{module}.{name}" in infos]
    wanted = stated.packing.codes if stated.packing else WEIGHT
    if held != [wanted] and (held != [WEIGHT] or not stated.may_be_dense):
        other = next(name for name in held if name != wanted)
        raise ModelError(f"{module}.{other}", f"is there, but {FIELD} makes it {wanted}; {REMEDY}")
    if stated.packing is not None and held == [wanted]:
        assert isinstance(stated.form, Groups)
        return packed_layer(module, stated.form, stated.packing, infos, contents)
    return _of_weight(module, stated, infos)


def _of_weight(module: str, stated: LayerStated, infos: Mapping[str, TensorInfo]) -> StoredLayer | None:
    """The layer at a module that has a weight."""
    weight = infos[f"{module}.weight"]
    held = [name for name in NAMES if f"{module}.{name}" in infos]
    is_dense = weight.dtype in FLOATS and not held
    if is_dense and (stated.form == DENSE or stated.may_be_dense):
        return None
    if stated.form == DENSE:
        what = weight.dtype if weight.dtype not in FLOATS else f"{weight.dtype} with {held[0]}"
        raise ModelError(f"{module}.weight", f"is {what}, but {FIELD} leaves it as it is; {REMEDY}")
    codes = CODES[type(stated.form)] if stated.packing is None else stated.packing.codes
    if weight.dtype != codes:
        raise ModelError(f"{module}.weight", f"is {weight.dtype}, but {FIELD} makes it {codes}; {REMEDY}")
    if len(weight.shape) != 2 or 0 in weight.shape:
        raise ModelError(f"{module}.weight", f"has shape {list(weight.shape)[:8]}, and must be a matrix; {REMEDY}")
    known = (*stated.scales, *stated.input_scales)
    if unknown := [name for name in held if name not in known]:
        raise ModelError(f"{module}.{unknown[0]}", f"is there, but {FIELD} states none; {REMEDY}")
    inputs = _found(module, stated.input_scales, "tensor", weight.shape, infos) if stated.input_scales else None
    return StoredLayer(_found(module, stated.scales, stated.grain, weight.shape, infos), stated.grain, inputs)


def _found(
    module: str, names: tuple[str, ...], grain: Grain, shape: tuple[int, ...], infos: Mapping[str, TensorInfo]
) -> str:
    """The one tensor of these names, if it has the shape of its grain."""
    found = [f"{module}.{name}" for name in names if f"{module}.{name}" in infos]
    if len(found) != 1:
        both = " and ".join(found) or "nothing"
        raise ModelError(f"{module}.{names[0]}", f"should be there, and the checkpoint holds {both}; {REMEDY}")
    info = infos[found[0]]
    outputs, (high, wide) = shape[0], (-(-length // BLOCK) for length in shape)
    allowed: dict[Grain, tuple[tuple[int, ...], ...]] = {
        "tensor": ((), (1,), (1, 1)),
        "rows": ((outputs, 1), (outputs,)),
        "blocks": ((high, wide), (high, 1, wide, 1), *([()] if high == wide == 1 else [])),
    }
    if info.dtype not in SCALES:
        raise ModelError(found[0], f"is {info.dtype}, and must be one of {', '.join(SCALES)}; {REMEDY}")
    if info.shape not in allowed[grain]:
        wanted = list(allowed[grain][0])
        raise ModelError(found[0], f"has shape {list(info.shape)[:8]}, but {FIELD} makes it {wanted}; {REMEDY}")
    return found[0]
