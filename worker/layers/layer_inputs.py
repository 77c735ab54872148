"""Inputs of layers beside the hidden state: a vector of each token for each layer, and its use in one."""

import math

import torch
from torch import nn

from quire.kernels.linear.activation import gated
from quire.kernels.rows import add, scale
from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import build_norm
from quire.worker.specs.spec import LayerInputSpec, NormSpec


class LayerInputs(nn.Module):
    """The vectors of all layers: rows of a table, and a projection of the embedding, normed."""

    def __init__(
        self, context: BuildContext, hidden: int, num_layers: int, spec: LayerInputSpec, norm: NormSpec
    ) -> None:
        super().__init__()
        self.shape, self.pad = (num_layers, spec.size), spec.pad
        self.factor = hidden**-0.5
        width, scale = num_layers * spec.size, float(torch.tensor(math.sqrt(spec.size), dtype=context.dtype))
        self.embedding = Vocabulary(context.at("embedding"), spec.vocab_size, width, multiplied=False, scale=scale)
        self.projection = ReplicatedLinear(context.at("projection"), hidden, width)
        self.norm = build_norm(context, spec.size, norm)

    def forward(
        self, token_ids: torch.Tensor, embedded: torch.Tensor, batch: ForwardBatch, items: Embedded | None = None
    ) -> torch.Tensor:
        """int64 [T], their embeddings [T, hidden] -> [T, layers, size]; `items`: which are those of items."""
        if items is not None:
            token_ids = items.others_of(token_ids, self.pad)
        rows = self.embedding.embed(token_ids)
        projected = scale(self.projection(embedded, batch), self.factor)
        normed = self.norm(projected.view(-1, *self.shape)).view_as(rows)
        return scale(add(normed, rows), 2**-0.5).view(-1, *self.shape)


class LayerInput(nn.Module):
    """The end of one layer, which chooses from its vector by a gate."""

    def __init__(self, context: BuildContext, hidden: int, spec: LayerInputSpec, norm: NormSpec) -> None:
        super().__init__()
        self.kind = spec.activation
        self.gate = ReplicatedLinear(context.at("gate"), hidden, spec.size)
        self.projection = ReplicatedLinear(context.at("projection"), spec.size, hidden)
        self.norm = build_norm(context, hidden, norm)

    def forward(self, x: torch.Tensor, given: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [T, hidden] and the layer's vectors [T, size] -> what is added to the hidden state, [T, hidden]"""
        chosen = self.projection(gated(self.gate(x, batch), given, self.kind), batch)
        added: torch.Tensor = self.norm(chosen)
        return added
