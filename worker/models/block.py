"""A block of a decoder, built from tables of kinds: what mixes tokens, what is done to each, and norms around both."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from quire.kernels.rows import add
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.attention import Attention
from quire.worker.layers.experts import RoutedMLP
from quire.worker.layers.experts_beside import ExpertsBeside
from quire.worker.layers.factor import Factor
from quire.worker.layers.layer_inputs import LayerInput
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import build_norm
from quire.worker.layers.rotary import Rotation
from quire.worker.memory.kv_cache import LayerCache
from quire.worker.specs.spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec

FEED_FORWARDS: Final[Mapping[type, Callable[[BuildContext, int, Any], nn.Module]]] = MappingProxyType(
    {
        FeedForwardSpec: lambda context, hidden, spec: GatedMLP(
            context, hidden, spec.intermediate_size, spec.bias, spec.activation, spec.sparsity
        ),
        ExpertsSpec: lambda context, hidden, spec: (
            RoutedMLP(context, hidden, spec)
            if spec.beside is None
            else ExpertsBeside(context, hidden, spec, spec.beside)
        ),
    }
)
"""Kind of a layer's feed-forward -> what builds it of (context, hidden size, spec).

It is called with (x, residual or None, norm or None, batch) and returns itself over the norm of their sum, and the sum.
"""


class Block(nn.Module):
    """Attention and feed-forward, with norms before or behind them. The residual sum travels apart, so that whatever
    comes next adds to it."""

    def __init__(self, context: BuildContext, hidden: int, norm: NormSpec, qk_norm: NormSpec, layer: LayerSpec) -> None:
        super().__init__()

        def norm_at(*places: str) -> nn.Module | None:
            return build_norm(context, hidden, norm) if layer.norms in places else None

        self.is_parallel = layer.norms == "parallel"
        self.attention_norm = norm_at("before", "both", "parallel")
        self.attention = Attention(context.at("attention"), hidden, layer.attention, qk_norm)
        self.attention_end_norm = norm_at("after", "both")
        self.mlp_norm = norm_at("before", "both")
        self.mlp = FEED_FORWARDS[type(layer.feed_forward)](context.at("mlp"), hidden, layer.feed_forward)
        self.mlp_end_norm = norm_at("after", "both")
        self.input = None if layer.input is None else LayerInput(context.at("input"), hidden, layer.input, norm)
        self.factor = Factor(context.at("factor")) if layer.scaled else None

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        batch: ForwardBatch,
        cache: LayerCache,
        given: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(x, residual) -> (x, residual), both [T, hidden]; the hidden state between blocks is their sum, or x alone.

        `given`: what the layer gets of each token beside it, [T, size].
        """
        if self.is_parallel:
            return self._parallel(x, residual, rotation, batch, cache)
        x, residual = self.attention(x, residual, self.attention_norm, rotation, batch, cache)
        if self.attention_end_norm is not None:
            x = self.attention_end_norm(x)
        x, residual = self.mlp(x, residual, self.mlp_norm, batch)
        if self.mlp_end_norm is not None:
            x = self.mlp_end_norm(x)
        if self.input is None and self.factor is None:
            return x, residual
        x = add(residual, x)
        if self.input is not None:
            x = add(x, self.input(x, given, batch))
        return (x if self.factor is None else self.factor(x)), None

    def _parallel(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        batch: ForwardBatch,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both parts over the same norm."""
        norm: Any = self.attention_norm
        normed, total = (norm(x), x) if residual is None else norm.add(x, residual)
        mixed, _ = self.attention(normed, None, None, rotation, batch, cache)
        fed, _ = self.mlp(normed, None, None, batch)
        return add(mixed, fed), total
