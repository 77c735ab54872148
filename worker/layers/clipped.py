"""Linear layers whose inputs and outputs a checkpoint keeps within bounds."""

import torch
from torch import nn

from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ColumnLinear, RowLinear
from quire.worker.weights.parts import Part
from quire.worker.weights.shard import ShardedModule

BOUNDS = ("input_min", "input_max", "output_min", "output_max")


class ClippedColumn(ColumnLinear):
    """A share of the outputs; one number bounds all of them from each side."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, axis: str) -> None:
        super().__init__(context, inputs, outputs, axis)
        _declare(self, context)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[T, inputs] -> [T, outputs]"""
        return _outputs(self, super().product(_inputs(self, x)))


class ClippedColumns(nn.Module):
    """Several equally long ones, side by side, each with bounds of its own for their inputs, too."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, names: tuple[str, ...], axis: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, ClippedColumn(context.at(name), inputs, outputs, axis))
        self._names = names

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[T, inputs] -> [T, outputs of all]"""
        return torch.cat([self.get_submodule(name).product(x) for name in self._names], 1)  # type: ignore[operator]


class ClippedRow(RowLinear):
    """A share of the inputs; what is bounded of the outputs is the sum over ranks."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, axis: str) -> None:
        super().__init__(context, inputs, outputs, axis)
        _declare(self, context)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[T, inputs] -> [T, outputs]"""
        return _outputs(self, super().product(_inputs(self, x)))


def _declare(module: ShardedModule, context: BuildContext) -> None:
    for name in BOUNDS:
        module.declare(name, context.dtype, (Part("", ()),), shape=())


def _inputs(module: ShardedModule, x: torch.Tensor) -> torch.Tensor:
    return x.clamp(module.stored("input_min"), module.stored("input_max"))


def _outputs(module: ShardedModule, x: torch.Tensor) -> torch.Tensor:
    return x.clamp(module.stored("output_min"), module.stored("output_max"))
