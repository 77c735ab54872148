"""The scheme of a merged layer whose parts are stored in different ways: a matrix for each part."""

from collections.abc import Mapping
from typing import cast

import torch

from quire.kernels.linear.side_by_side import side_by_side
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.parts import Slice
from quire.worker.weights.shard import ShardedModule


def merged(schemes: Mapping[str, Scheme], outputs: tuple[tuple[str, Slice], ...]) -> Scheme:
    """The scheme of a layer of these parts: theirs if they are equal and join them, else one that keeps them apart."""
    first, *others = schemes.values()
    return first if all(other == first for other in others) and first.joins(outputs) else PartsApart(schemes)


class PartsApart(Scheme):
    """Multiplies part by part, each with its share of the bias, and puts the outputs side by side."""

    def __init__(self, schemes: Mapping[str, Scheme]) -> None:
        """`schemes`: by the part's name."""
        self._schemes = dict(schemes)
        self._widths: list[int] = []

    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        """Every part becomes a module of the layer, under the part's name."""
        for name, rows in outputs:
            matrix = _Matrix(self._schemes[name])
            matrix.scheme.create(matrix, (("", rows),), inputs, dtype)
            layer.add_module(name, matrix)
            self._widths.append(rows.length)

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        parts = (cast(_Matrix, layer._modules[name]) for name in self._schemes)
        biases = [None] * len(self._widths) if bias is None else torch.split(bias, self._widths)
        products = [part.scheme.apply(part, x, own) for part, own in zip(parts, biases, strict=True)]
        return side_by_side(*products)


class _Matrix(ShardedModule):
    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme

    def finish(self) -> None:
        self.scheme.finish(self)
