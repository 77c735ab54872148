"""A quantized checkpoint as the forms want it: scales for each output or block, codes one by one."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from quire.worker.quant.form import BLOCK
from quire.worker.quant.read.headers import AnyStored, StoredLayer
from quire.worker.quant.read.packed_headers import PackedLayer
from quire.worker.quant.read.stacked.headers import StackedLayer
from quire.worker.quant.read.stacked.tensors import StackedTensors
from quire.worker.quant.read.unpack import PackedTensors
from quire.worker.weights.header import CheckpointError
from quire.worker.weights.source import WeightSource

SCALE: Final = "scale"
INPUT_SCALE: Final = "input_scale"
"""Names that schemes give them."""
Region = tuple[slice, ...]


class LayerTensors(Protocol):
    """The tensors of a layer that are not handed out as the file holds them."""

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(name of a tensor in the file, the scheme's names for what is handed out when its turn comes)"""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, by the scheme's name."""
        ...

    def read(self, name: str, region: Region) -> torch.Tensor: ...


def source_of(files: WeightSource, layers: Mapping[str, AnyStored], unread: Collection[str]) -> WeightSource:
    """The files themselves, where nothing is quantized in them. `unread`: tensors to leave out."""
    return QuantizedSource(files, layers, unread) if layers or unread else files


class QuantizedSource:
    """Implements `WeightSource` over that of the files."""

    def __init__(self, files: WeightSource, layers: Mapping[str, AnyStored], unread: Collection[str]) -> None:
        """`layers`: by their names in the checkpoint."""
        self._files = files
        self._handed_out: dict[str, tuple[LayerTensors, str]] = {}
        self._names: dict[str, tuple[str, ...]] = dict.fromkeys(unread, ())
        """Name in the files -> names of what is handed out in its place. All others keep theirs."""
        for module, layer in layers.items():
            tensors = _tensors(files, module, layer)
            for stored, names in tensors.names():
                self._names[stored] = tuple(f"{module}.{name}" for name in names)
                self._handed_out |= {f"{module}.{name}": (tensors, name) for name in names}

    @property
    def origin(self) -> str:
        return self._files.origin

    def names(self) -> tuple[str, ...]:
        return tuple(handed for name in self._files.names() for handed in self._names.get(name, (name,)))

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._handed_out:
            return self._files.shape(name)
        tensors, own = self._handed_out[name]
        return tensors.shape(own)

    def dtype(self, name: str) -> torch.dtype | None:
        """That of the files: what is handed out otherwise is as the scheme has it."""
        return None if name in self._handed_out else self._files.dtype(name)

    def read(self, name: str, region: Region) -> torch.Tensor:
        """Raises CheckpointError for a scale with which nothing can be computed, and what else is damaged."""
        if name not in self._handed_out:
            return self._files.read(name, region)
        tensors, own = self._handed_out[name]
        return tensors.read(own, region)


def _tensors(files: WeightSource, module: str, layer: AnyStored) -> LayerTensors:
    if isinstance(layer, StackedLayer):
        return StackedTensors(files, module, layer)
    return PackedTensors(files, module, layer) if isinstance(layer, PackedLayer) else Scales(files, module, layer)


@dataclass(frozen=True, slots=True)
class Scales:
    """Scales beside a weight of codes of 8 bits. Implements `LayerTensors`.

    What stands for a whole weight is handed out for each of its rows, so that it is merged and divided as they are.
    """

    files: WeightSource
    module: str
    layer: StoredLayer

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        yield self.layer.scale, (SCALE,)
        if self.layer.input_scale is not None:
            yield self.layer.input_scale, (INPUT_SCALE,)

    def shape(self, name: str) -> tuple[int, ...]:
        if name == SCALE and self.layer.grain == "blocks":
            return tuple(-(-length // BLOCK) for length in self.files.shape(f"{self.module}.weight"))
        return self.files.shape(f"{self.module}.weight")[:1]

    def read(self, name: str, region: Region) -> torch.Tensor:
        stored = self.layer.scale if name == SCALE else self.layer.input_scale
        assert stored is not None
        shape = self.shape(name)
        whole = self.files.read(stored, (slice(None),) * len(self.files.shape(stored))).float()
        scale = (whole.view(shape) if len(shape) > 1 else whole.flatten().expand(shape))[region]
        if not scale.isfinite().all() or (name == INPUT_SCALE and not (scale > 0).all()):  # activations are divided
            raise CheckpointError(f"{stored}: holds a scale that nothing can be computed with; download it again")
        return scale
