"""The headers of floats of 4 bits of all experts of a layer in one tensor, held against what config.json states."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from quire.worker.quant.form import MXFP4
from quire.worker.quant.read.packed_headers import SMALL
from quire.worker.quant.read.stated import FIELD, REMEDY
from quire.worker.weights.header import TensorInfo
from quire.worker.weights.parts import ModelError

BLOCKS: Final = "_blocks"
SCALES: Final = "_scales"
"""Ends of the names of what stands in place of a tensor of matrices."""
assert MXFP4.size is not None
GROUP: Final = MXFP4.size
BLOCK_BYTES: Final = GROUP * MXFP4.bits // 8
"""Bytes of the codes of a group, which have an axis of their own."""


@dataclass(frozen=True, slots=True)
class StackedLayer:
    """The matrices of all experts, as the headers show them."""

    experts: int
    outputs: int
    inputs: int

    @property
    def groups(self) -> int:
        return self.inputs // GROUP


def stacked_layer(module: str, infos: Mapping[str, TensorInfo]) -> StackedLayer:
    """The matrices whose codes are at `module` + `BLOCKS`. Raises ModelError where the headers contradict the form."""
    blocks, scales = f"{module}{BLOCKS}", f"{module}{SCALES}"
    shape = _shape(blocks, infos, ("U8",))
    if len(shape) != 4 or not prod(shape) or shape[-1] != BLOCK_BYTES:
        wanted = f"[experts, outputs, groups, {BLOCK_BYTES}]"
        raise ModelError(blocks, f"has shape {list(shape)[:8]}, and must be {wanted}; {REMEDY}")
    beside = _shape(scales, infos, SMALL[str(MXFP4.scale)])
    if beside != shape[:3]:
        raise ModelError(scales, f"has shape {list(beside)[:8]}, but {blocks} makes it {list(shape[:3])}; {REMEDY}")
    return StackedLayer(shape[0], shape[1], shape[2] * GROUP)


def _shape(name: str, infos: Mapping[str, TensorInfo], dtypes: tuple[str, ...]) -> tuple[int, ...]:
    if name not in infos:
        raise ModelError(name, f"should be there, but the checkpoint holds nothing; {REMEDY}")
    if (dtype := infos[name].dtype) not in dtypes:
        raise ModelError(name, f"is {dtype}, but {FIELD} makes it one of {', '.join(dtypes)}; {REMEDY}")
    return infos[name].shape
