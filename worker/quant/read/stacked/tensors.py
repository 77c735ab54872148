"""Codes and scales of all experts of a layer out of one tensor of each, region by region.

Source: transformers' integrations/mxfp4.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from quire.worker.quant.form import MXFP4
from quire.worker.quant.read.stacked.headers import BLOCKS, GROUP, SCALES, StackedLayer
from quire.worker.quant.read.unpack import CODES, SCALE, Region, unpack_words, useless
from quire.worker.weights.source import WeightSource


@dataclass(frozen=True, slots=True)
class StackedTensors:
    """The tensors of one layer, under the scheme's names: codes uint8 [E, O, I] and scale e8m0 [E, O, I / 32].

    Implements `quire.worker.quant.read.source.LayerTensors`.
    """

    files: WeightSource
    module: str
    layer: StackedLayer

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Both when the codes' turn comes: an expert is finished before the next one is unpacked."""
        yield f"{self.module}{BLOCKS}", (SCALE, CODES)
        yield f"{self.module}{SCALES}", ()

    def shape(self, name: str) -> tuple[int, ...]:
        layer = self.layer
        return (layer.experts, layer.outputs, layer.inputs if name == CODES else layer.groups)

    def read(self, name: str, region: Region) -> torch.Tensor:
        """Raises CheckpointError for a scale with which nothing can be computed."""
        return self._codes(*region) if name == CODES else self._scale(region)

    def _scale(self, region: Region) -> torch.Tensor:
        name = f"{self.module}{SCALES}"
        scale = self.files.read(name, region).view(torch.float8_e8m0fnu)
        if not scale.float().isfinite().all():
            raise useless(name)
        return scale

    def _codes(self, experts: slice, outputs: slice, inputs: slice) -> torch.Tensor:
        """A region of codes out of the whole groups that hold it."""
        run = range(self.layer.inputs)[inputs]
        groups = slice(run.start // GROUP, -(-run.stop // GROUP))
        blocks = self.files.read(f"{self.module}{BLOCKS}", (experts, outputs, groups, slice(None)))
        codes = unpack_words(blocks.flatten(2).flatten(0, 1), 1, MXFP4.bits, ()).view(*blocks.shape[:2], -1)
        start = groups.start * GROUP
        return codes[..., run.start - start : run.stop - start : run.step]
