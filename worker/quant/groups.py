"""Codes of 4 to 8 bits with a scale for each output and group of inputs: read, or made when the model is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import nn

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.embed_groups import embed_groups
from quire.kernels.linear.linear_groups import linear_groups, norm_linear_groups, pack, pack_scale
from quire.worker.quant.form import E4M3, STEP, UNIT, Groups
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.parts import STORED, ModelError, Slice, consecutive, whole
from quire.worker.weights.shard import ShardedModule

UNITS: Final = ("unit", "minima_unit")
"""Names of the tensors that scales and minima are multiples of, as they are loaded."""
PIECE: Final = 1024
"""Rows of a weight that are quantized at once: the steps in between take several times their memory."""


@dataclass(frozen=True, slots=True)
class GroupsScheme(Scheme):
    """Keeps `packed` codes, `scale` [outputs, groups], `offset` like it where there is one; `unit` [1 or 2, outputs,
    superblocks or 1] where these are multiples of something; and `columns` where inputs have an order of their own:
    which input the product takes at each place, -1 for none."""

    looks_up: ClassVar[bool] = True
    codes: ClassVar[str] = "packed"
    """Name of the tensor of codes that is kept."""

    form: Groups

    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        form = self.form
        if not form.stored:
            layer.declare("weight", dtype, consecutive(outputs, inputs))
            return
        groups, number = self._groups(inputs), getattr(torch, form.scale)
        scale = torch.int8 if form.superblock else number
        layer.declare("codes", torch.uint8, consecutive(outputs, inputs))
        layer.declare("scale", scale, consecutive(outputs, groups))
        if form.offset != "none":
            layer.declare(form.offset, torch.uint8 if form.offset == "zeros" else scale, consecutive(outputs, groups))
        if form.superblock:
            units = inputs.within(form.superblock)
            for name in UNITS[: 2 if form.offset == "minima" else 1]:
                layer.declare(name, number, consecutive(outputs, units))
        if form.scale == E4M3:
            layer.declare(UNITS[0], torch.float32, consecutive(outputs, whole(1)))
        layer.levels |= dict.fromkeys(("codes", "zeros", "minima"), 1 << form.bits)
        if form.order:
            layer.declare("index", torch.int32, consecutive(tuple((name, inputs) for name, _ in outputs)))

    def _groups(self, inputs: Slice) -> Slice:
        """The groups of a rank's inputs: of all inputs, where those of a group lie anywhere."""
        size = self.form.size
        if self.form.order:
            return whole(inputs.full // (size or UNIT))
        groups = whole(1) if size is None else _whole_groups(inputs, size)
        _whole_groups(inputs, UNIT, STEP)  # as many as activations share a scale
        return groups

    def finish(self, layer: ShardedModule) -> None:
        form = self.form
        offset: torch.Tensor | None
        if not form.stored:
            codes, scale, offset = quantized(layer.stored("weight").detach(), form)
        else:
            codes, scale = layer.stored("codes").detach(), layer.stored("scale").detach()
            offset = None if form.offset == "none" else layer.stored(form.offset).detach()
        if form.order:
            columns, groups = in_order(layer.stored("index")[: codes.shape[1]], form.size or codes.shape[1])
            codes = codes[:, columns.clamp(min=0)]  # where there is no input a 0 is multiplied
            scale, offset = scale[:, groups], None if offset is None else offset[:, groups]
            layer.register_parameter("columns", nn.Parameter(columns, requires_grad=False))
        units = [self._shared(layer.stored(name), layer) for name in UNITS if name in layer.parts]
        kept = self.kept(codes, scale, offset, units)
        for name in ("weight", "codes", "scale", "zeros", "minima", "index", *UNITS):
            layer._parameters.pop(name, None)
            layer.parts.pop(name, None)
        for name, tensor in kept.items():
            layer.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def _shared(self, units: torch.Tensor, layer: ShardedModule) -> torch.Tensor:
        """Units of a rank's inputs alone, all of as many: those of a superblock that is cut stand for its pieces."""
        size = self.form.superblock
        if size is None:
            return units.detach()
        inputs = layer.parts["codes"][0].axes[1]
        begins = torch.arange(inputs.start, inputs.stop, self.form.unit_inputs(inputs.length), device=units.device)
        return units.detach()[:, begins // size - inputs.start // size]

    def kept(
        self, codes: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, units: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Tensors that the product reads, of plain codes [outputs, inputs], scales and offsets [outputs, groups], and
        what these are multiples of [outputs, superblocks or 1], if they are."""
        kept = {"packed": pack(codes, self.form.bits), "scale": pack_scale(scale)}
        if offset is not None:
            kept["offset"] = pack_scale(offset)
        if units:
            kept["unit"] = torch.stack([pack_scale(unit) for unit in units])
        return kept

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.form.order:
            x = taken(x, layer.stored("columns"))
        packed, scale, offset = layer.stored("packed"), layer.stored("scale"), layer._parameters.get("offset")
        unit, form = layer._parameters.get("unit"), self.form
        return linear_groups(x, packed, scale, offset, bias, form.bits, form.activations, unit, form.table)

    def apply_normed(
        self,
        layer: ShardedModule,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor,
        eps: float,
        bias: torch.Tensor | None,
        gate: Gate | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        form = self.form
        if form.order:
            return Scheme.apply_normed(self, layer, x, residual, norm_weight, eps, bias, gate)
        packed, scale, offset = layer.stored("packed"), layer.stored("scale"), layer._parameters.get("offset")
        weight, unit = (packed, scale, offset, bias), layer._parameters.get("unit")
        how = (form.bits, form.activations, unit, form.table)
        return norm_linear_groups(x, residual, norm_weight, eps, *weight, gate, *how)

    def coded(
        self, layers: Sequence[ShardedModule], biases: Sequence[torch.Tensor | None], outputs: int, inputs: int
    ) -> CodedMatrices | None:
        if self.form.order:
            return None
        each = tuple(
            Coded(
                layer.stored(self.codes),
                layer.stored("scale"),
                layer._parameters.get("offset"),
                layer._parameters.get("unit"),
                bias,
            )
            for layer, bias in zip(layers, biases, strict=True)
        )
        return self.matrices(each, outputs, inputs)

    def matrices(self, each: tuple[Coded, ...], outputs: int, inputs: int) -> CodedMatrices:
        form = self.form
        return CodedMatrices("groups", outputs, inputs, each, form.activations, form.bits, form.table)

    def look_up(
        self, layer: ShardedModule, token_ids: torch.Tensor, first: int, count: int, hidden: int, dtype: torch.dtype
    ) -> torch.Tensor:
        packed, scale, offset = layer.stored("packed"), layer.stored("scale"), layer._parameters.get("offset")
        unit, form = layer._parameters.get("unit"), self.form
        return embed_groups(token_ids, packed, scale, offset, first, count, hidden, form.bits, dtype, unit, form.table)


def _whole_groups(inputs: Slice, size: int, together: str = STORED) -> Slice:
    """A rank's inputs where so many are one. Raises ModelError for those that are none, or would be divided."""
    groups = inputs.grouped(size, together)
    if inputs.length % size:
        message = f"a layer has {inputs.length} inputs on a rank, which are no multiple of {size}"
        raise ModelError("quantization_config", f"{message}; use another checkpoint, or the unquantized one")
    return groups


def quantized(weight: torch.Tensor, form: Groups) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and zero points of a weight [outputs, inputs], rounded to the nearest; each group has a 0."""
    outputs, inputs = weight.shape
    size, most = form.size or inputs, (1 << form.bits) - 1
    codes = torch.empty((outputs, inputs), dtype=torch.uint8, device=weight.device)
    scale = torch.empty((outputs, inputs // size), dtype=getattr(torch, form.scale), device=weight.device)
    zeros = torch.empty(scale.shape, dtype=torch.uint8, device=weight.device)
    for start in range(0, outputs, PIECE):
        rows = slice(start, start + PIECE)
        grouped = weight[rows].float().reshape(-1, inputs // size, size)
        least, largest = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
        scale[rows] = torch.where(largest == least, 1.0, (largest - least) / most)
        step = scale[rows].float()
        zero = (-least / step).round().clamp(0, most)
        zeros[rows] = zero.to(torch.uint8)
        codes[rows] = ((grouped / step[..., None]).round() + zero[..., None]).clamp(0, most).flatten(1).to(torch.uint8)
    return codes, scale, zeros


def in_order(index: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns int32 that put a rank's inputs into the order of their groups, and the group of each run of columns.

    `index` [inputs]: the group of each input. Runs are whole groups where the rank has all of their inputs; else units,
    the last of a group filled up with -1.
    """
    counts = torch.bincount(index)
    run = size if not (counts % size).any() else UNIT
    runs = -(-counts // run)
    columns = torch.full((int(runs.sum()) * run,), -1, dtype=torch.int32, device=index.device)
    ends = (runs * run).cumsum(0)
    for group, members in enumerate(torch.split(index.argsort(stable=True), counts.tolist())):
        start = int(ends[group] - runs[group] * run)
        columns[start : start + len(members)] = members.int()
    return columns, torch.repeat_interleave(torch.arange(len(counts), device=index.device), runs)


def taken(x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """x [T, inputs] in the order of the columns; 0 where there is none."""
    return torch.cat((x, x.new_zeros(x.shape[0], 1)), 1).index_select(1, columns % (x.shape[1] + 1))
