"""The headers of a layer of packed codes, held against what config.json states; the groups of its inputs with them."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from quire.worker.quant.form import UNIT, Groups
from quire.worker.quant.read.packing import Packing
from quire.worker.quant.read.stated import FIELD, OTHERWISE, REMEDY
from quire.worker.weights.header import FLOATS, TensorInfo
from quire.worker.weights.parts import ModelError

INTEGERS: Final = ("I32", "I64")
"""Types of the tensor that repeats a matrix's shape."""
SMALL: Final[Mapping[str, tuple[str, ...]]] = {"float8_e4m3fn": ("F8_E4M3",), "float8_e8m0fnu": ("U8", "F8_E8M0")}
"""Types of the file in which scales of a byte lie: powers of two are bytes to most tools."""


BIAS: Final = "bias"
READ: Final = {"weight_g_idx": ("I32",), "g_idx": ("I32",), BIAS: tuple(FLOATS)}
"""Names of the tensors with the group of each input, and of biases; their types."""
MOST_ITEMS: Final = 1 << 20
"""Inputs, or outputs, of a layer for which these are read."""


def is_read(name: str, info: TensorInfo) -> bool:
    """True of a tensor whose content decides with the headers what a layer is."""
    allowed = READ.get(name.rpartition(".")[2], ())
    return info.dtype in allowed and len(info.shape) == 1 and 1 <= info.shape[0] <= MOST_ITEMS


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """A layer of codes in groups, as the headers show it."""

    packing: Packing
    form: Groups
    outputs: int
    inputs: int
    has_zeros: bool
    """The file holds zero points: where codes are symmetric, all of them must be half the range."""
    has_shape: bool

    @property
    def groups(self) -> int:
        return 1 if self.form.size is None else self.inputs // self.form.size


def packed_layer(
    module: str, form: Groups, packing: Packing, infos: Mapping[str, TensorInfo], contents: Mapping[str, bytes]
) -> PackedLayer:
    """The layer at `module`, which has codes. `contents`: bytes of tensors that hold inputs' groups.

    Raises ModelError where the headers contradict the form.
    """
    rows, columns = _matrix(f"{module}.{packing.codes}", infos, packing.dtype)
    words = [rows, columns]
    words[packing.axis] *= packing.word // form.bits
    outputs, inputs = reversed(words) if packing.is_transposed else words
    size = form.size or inputs
    if inputs % UNIT or inputs % size:
        share, remedy = UNIT if inputs % UNIT else size, REMEDY if inputs % size else OTHERWISE
        message = f"are of {inputs} inputs, which are no multiple of {share}; {remedy}"
        raise ModelError(f"{module}.{packing.codes}", message)
    groups = inputs // size
    scale = _found(module, packing.scale, infos, packing.stored(outputs, groups), SMALL.get(form.scale, tuple(FLOATS)))
    assert scale is not None
    needs_zeros = form.offset == "zeros"
    shape = packing.zeros_shape(outputs, groups, form.bits)
    zeros = _found(module, packing.zeros, infos, shape, ("I32",), is_needed=needs_zeros)
    index = _found(module, packing.index, infos, (inputs,), ("I32",), is_needed=False)
    written = _found(module, packing.shape, infos, (2,), INTEGERS, is_needed=False)
    if packing.unit:
        _number(f"{module}.{packing.unit}", infos)
    order = "" if index is None else _order(f"{module}.{packing.index}", contents, inputs, size)
    form = replace(form, scale=FLOATS.get(scale.dtype, form.scale), order=order)
    return PackedLayer(packing, form, outputs, inputs, zeros is not None, written is not None)


def _matrix(name: str, infos: Mapping[str, TensorInfo], dtype: str) -> tuple[int, int]:
    info = infos[name]
    if info.dtype != dtype:
        raise ModelError(name, f"is {info.dtype}, but {FIELD} makes it {dtype}; {REMEDY}")
    if len(info.shape) != 2 or 0 in info.shape:
        raise ModelError(name, f"has shape {list(info.shape)[:8]}, and must be a matrix; {REMEDY}")
    return info.shape[0], info.shape[1]


def _number(name: str, infos: Mapping[str, TensorInfo]) -> None:
    """Refuse what is no number of float32, with or without an axis of its own."""
    module, _, tensor = name.rpartition(".")
    has_axis = name not in infos or len(infos[name].shape) > 0
    _found(module, tensor, infos, (1,) * has_axis, ("F32",))


def _found(
    module: str,
    tensor: str,
    infos: Mapping[str, TensorInfo],
    shape: tuple[int, ...],
    dtypes: tuple[str, ...],
    *,
    is_needed: bool = True,
) -> TensorInfo | None:
    """The tensor of this name, if it has the shape and the type. A tensor without a name is not there."""
    name = f"{module}.{tensor}"
    info = infos.get(name) if tensor else None
    if info is None:
        if is_needed:
            raise ModelError(name, f"should be there, and the checkpoint holds nothing; {REMEDY}")
        return None
    if info.dtype not in dtypes:
        raise ModelError(name, f"is {info.dtype}, and must be one of {', '.join(dtypes)}; {REMEDY}")
    if info.shape != shape:
        raise ModelError(name, f"has shape {list(info.shape)[:8]}, but {FIELD} makes it {list(shape)}; {REMEDY}")
    return info


def _order(name: str, contents: Mapping[str, bytes], inputs: int, size: int) -> str:
    """Digest of the inputs' groups; empty where each is the one behind those before."""
    content = contents.get(name, b"")
    if content == _one_after_the_other(inputs, size):
        return ""
    index = array("i", content)
    if Counter(index) != dict.fromkeys(range(inputs // size), size):
        raise ModelError(name, f"should name each of {inputs // size} groups {size} times; {REMEDY}")
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=16)
def _one_after_the_other(inputs: int, size: int) -> bytes:
    return array("i", (number // size for number in range(inputs))).tobytes()
