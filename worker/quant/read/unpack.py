"""Tensors of groups out of packed words: codes, scales, zero points, whatever the file's axes; a region at a time.

Source: compressed-tensors' compressors (pack_quantized, nvfp4, mxfp4), AutoAWQ's utils/packing_utils.py, GPTQModel's
qlinear/torch.py, nvidia-modelopt's quantization/qtensor/nvfp4_tensor.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from quire.worker.quant.read.packed_headers import PackedLayer
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.names import INDEX
from quire.worker.weights.source import WeightSource

CODES: Final = "codes"
SCALE: Final = "scale"
ZEROS: Final = "zeros"
UNIT: Final = "unit"
"""Names that schemes give them, as they do `INDEX`."""
PIECE: Final = 32
"""Rows of words that are unpacked at once: as many as stay in a cache."""
Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """The tensors of one layer, under the scheme's names: codes uint8 [O, I], scale [O, G], zeros uint8 [O, G], and
    unit float32 [O, 1], the number of the whole matrix at each output: so it is merged and divided as they are.

    Implements `quire.worker.quant.read.source.LayerTensors`.
    """

    files: WeightSource
    module: str
    layer: PackedLayer

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """All when the codes' turn comes: a file has the scales, of smaller items, behind the codes of all layers."""
        packing, form = self.layer.packing, self.layer.form
        zeros, index = (ZEROS,) * (form.offset == "zeros"), (INDEX,) * bool(form.order)
        yield self._stored(packing.codes), (*index, SCALE, *(UNIT,) * bool(packing.unit), *zeros, CODES)
        others = (packing.scale, packing.unit, packing.zeros, packing.index, packing.shape, *packing.unread)
        for beside in filter(None, others):
            yield self._stored(beside), ()

    def shape(self, name: str) -> tuple[int, ...]:
        layer = self.layer
        if name == INDEX:
            return (layer.inputs,)
        if name == UNIT:
            return (layer.outputs, 1)
        return (layer.outputs, layer.inputs if name == CODES else layer.groups)

    def read(self, name: str, region: Region) -> torch.Tensor:
        """Raises CheckpointError for what the headers did not show to be wrong."""
        packing = self.layer.packing
        if name == CODES:
            self._check_shape()
            return self._unpacked(packing.codes, packing.axis, self.shape(CODES), region, 0)
        if name == SCALE:
            if self.layer.has_zeros and self.layer.form.offset == "none":
                self._check_symmetric(region)
            return self._scale(region)
        if name == UNIT:
            return self._unit(region)
        if name == ZEROS:
            return self._zeros(region)
        return self.files.read(self._stored(packing.index), region)

    def _stored(self, tensor: str) -> str:
        return f"{self.module}.{tensor}"

    def _scale(self, region: Region) -> torch.Tensor:
        name = self._stored(self.layer.packing.scale)
        scale = self.files.read(name, self._turned(region))
        if scale.dtype == torch.uint8:
            scale = scale.view(torch.float8_e8m0fnu)
        if not scale.float().isfinite().all():
            raise useless(name)
        return scale.T if self.layer.packing.is_transposed else scale

    def _unit(self, region: Region) -> torch.Tensor:
        """The factor of all scales; of a number that divides them the reciprocal: weights are 2 ulps off at most."""
        name = self._stored(self.layer.packing.unit)
        stored = self.files.read(name, (slice(None),) * len(self.files.shape(name)))
        unit = stored.reciprocal() if self.layer.packing.divides else stored
        if not (stored.isfinite() & unit.isfinite() & (unit >= 0)).all():
            raise useless(name)
        return unit.reshape(1, 1).expand(self.shape(UNIT))[region]

    def _zeros(self, region: Region) -> torch.Tensor:
        packing = self.layer.packing
        return self._unpacked(packing.zeros, packing.zeros_axis, self.shape(ZEROS), region, packing.less)

    def _turned(self, region: Region) -> Region:
        return region[::-1] if self.layer.packing.is_transposed else region

    def _unpacked(self, tensor: str, axis: int, shape: tuple[int, ...], region: Region, added: int) -> torch.Tensor:
        """A region of codes out of the words that hold it; `added` to each code."""
        bits, packing = self.layer.form.bits, self.layer.packing
        axis ^= packing.is_transposed  # from here on the matrix's
        each, run = packing.word // bits, range(shape[axis])[region[axis]]
        first, last = run.start // each, -(-run.stop // each)
        stored = [*region]
        stored[axis] = slice(first, last)
        words = self.files.read(self._stored(tensor), self._turned(tuple(stored)))
        if packing.is_transposed:
            words = words.T.clone(memory_format=torch.contiguous_format)
        if added:  # to all codes of a word at once: what a code borrowed from the next one is given back
            everywhere = sum(added << shift for shift in range(0, packing.word, bits))
            words = words + torch.tensor(everywhere, dtype=words.dtype)
        codes = unpack_words(words, axis, bits, packing.order)
        within = slice(run.start - first * each, run.stop - first * each, run.step)
        return codes[within] if axis == 0 else codes[:, within]

    def _check_shape(self) -> None:
        """The shape that the file writes out is that of the matrix."""
        if not self.layer.has_shape:
            return
        name = self._stored(self.layer.packing.shape)
        written = self.files.read(name, (slice(None),)).tolist()
        if written != [*self.shape(CODES)]:
            message = f"holds {written}, but the codes are {[*self.shape(CODES)]}; download it again"
            raise CheckpointError(f"{name}: {message}")

    def _check_symmetric(self, region: Region) -> None:
        """Zero points of symmetric codes are half the range."""
        half = 1 << (self.layer.form.bits - 1)
        if (self._zeros(region) != half).any():
            name = self._stored(self.layer.packing.zeros)
            message = f"holds zero points other than {half}, but config.json states symmetric codes; correct it"
            raise CheckpointError(f"{name}: {message}")


def useless(name: str) -> CheckpointError:
    """The error of a scale that is no number."""
    return CheckpointError(f"{name}: holds a scale that nothing can be computed with; download it again")


def unpack_words(words: torch.Tensor, axis: int, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Codes uint8 out of int32 or uint8 words [A, B] that hold `32 / bits` or `8 / bits` of them along `axis`.

    The first lies in the lowest bits, or each at its place in `order`.
    """
    each = 8 * words.itemsize // bits
    places = order or tuple(range(each))
    if axis == 1 and not order:  # as the bytes lie in memory
        octets = words.view(torch.uint8)
        return torch.stack((octets & 15, octets >> 4), -1).flatten(1) if bits == 4 else octets
    codes = torch.empty((words.shape[0], each, words.shape[1]), dtype=torch.uint8)
    for some, own in zip(torch.split(words, PIECE), torch.split(codes, PIECE), strict=True):
        for place, codes_there in zip(places, own.unbind(1), strict=True):
            codes_there.copy_(some >> place * bits & (1 << bits) - 1)
    return codes.flatten(0, 1) if axis == 0 else codes.transpose(1, 2).flatten(1)
