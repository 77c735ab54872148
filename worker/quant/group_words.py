"""Groups of codes on a GPU: the words that its product reads, and activations as they are."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from quire.kernels.experts.coded import Coded, CodedMatrices
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.embed_group_words import embed_group_words
from quire.kernels.linear.linear_group_words import linear_group_words, norm_linear_group_words, pack_words
from quire.kernels.linear.linear_groups import scaled
from quire.worker.quant.groups import GroupsScheme, taken
from quire.worker.quant.scheme import Scheme
from quire.worker.weights.shard import ShardedModule


@dataclass(frozen=True, slots=True)
class GroupWordsScheme(GroupsScheme):
    """Keeps `words`, `scale` [groups, outputs], `offset` like it where there is one; `unit` where these are multiples
    of something, [outputs] or [1 or 2, superblocks, outputs]; and `columns` like its base. Where ranks cut superblocks
    scales and offsets are float32, and multiples of nothing."""

    codes: ClassVar[str] = "words"

    def kept(
        self, codes: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, units: list[torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        bits, held_bits = self.form.bits, self.form.held_bits
        if offset is None and held_bits > bits:
            codes = codes + ((1 << held_bits - 1) - (1 << bits - 1))  # about the middle of a byte
        if self.form.superblock and not self.form.has_units(codes.shape[1]):
            scale, offset = scaled(scale, units[0]), None if offset is None else scaled(offset, units[1])
            units = []
        kept = {"words": pack_words(codes, held_bits), "scale": scale.T.contiguous()}
        if offset is not None:
            kept["offset"] = offset.T.contiguous()
        if units:
            kept["unit"] = torch.stack([one.T for one in units]) if self.form.superblock else units[0].flatten()
        return kept

    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.form.order:
            x = taken(x, layer.stored("columns"))
        words, scale, offset = layer.stored("words"), layer.stored("scale"), layer._parameters.get("offset")
        unit, form = layer._parameters.get("unit"), self.form
        return linear_group_words(x, words, scale, offset, bias, form.held_bits, unit, form.table)

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
        words, scale, offset = layer.stored("words"), layer.stored("scale"), layer._parameters.get("offset")
        weight, unit = (words, scale, offset, bias), layer._parameters.get("unit")
        return norm_linear_group_words(x, residual, norm_weight, eps, *weight, gate, form.held_bits, unit, form.table)

    def matrices(self, each: tuple[Coded, ...], outputs: int, inputs: int) -> CodedMatrices:
        return CodedMatrices("group_words", outputs, inputs, each, bits=self.form.held_bits, table=self.form.table)

    def look_up(
        self, layer: ShardedModule, token_ids: torch.Tensor, first: int, count: int, hidden: int, dtype: torch.dtype
    ) -> torch.Tensor:
        words, scale, offset = layer.stored("words"), layer.stored("scale"), layer._parameters.get("offset")
        share, form = (first, count, hidden), self.form
        unit = layer._parameters.get("unit")
        return embed_group_words(token_ids, words, scale, offset, *share, form.held_bits, dtype, unit, form.table)
