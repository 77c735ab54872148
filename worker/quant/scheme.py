"""A scheme stores and multiplies the weights of linear layers: one object for all layers that are stored alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from quire.kernels.experts.coded import CodedMatrices
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.embedding import embed_shard
from quire.kernels.linear.norm import add_rms_norm, rms_norm
from quire.worker.weights.parts import Slice
from quire.worker.weights.shard import ShardedModule


class Scheme(ABC):
    """A linear layer asks `create` once, when it is built, `finish` once, when it is filled, `apply` in every step.

    Schemes that are equal store alike: the parts of a merged layer then share one product.
    """

    looks_up: ClassVar[bool] = False
    """An embedding is stored as the scheme has it, once where it is the output head, too. Else it is dense, a `weight`
    in the model's dtype, and a head of the scheme lies beside it."""

    @abstractmethod
    def create(
        self, layer: ShardedModule, outputs: tuple[tuple[str, Slice], ...], inputs: Slice, dtype: torch.dtype
    ) -> None:
        """Declare the stored tensors of a matrix on `layer`.

        The matrix has logical shape [sum of outputs, inputs]: `outputs` are the named runs of rows merged into it,
        `inputs` its columns, each as the slice this rank holds. A scheme that packs or scales translates these
        into slices of what it stores, and refuses (ModelError) a slice that does not fall on its groups.
        """

    def joins(self, outputs: tuple[tuple[str, Slice], ...]) -> bool:
        """True where these parts of a merged layer can share one product; else each has its own.

        Left out: they can.
        """
        return True

    def finish(self, layer: ShardedModule) -> None:
        """Turn what was loaded into what the product reads, and let go of the rest. The weight may be shared.

        Left out: the product reads what is in the checkpoint.
        """
        return

    @abstractmethod
    def apply(self, layer: ShardedModule, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`x @ matrix.T + bias`: x [T, inputs], bias [outputs] -> [T, outputs], this rank's share of each."""

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
        """The product over `rms_norm(x + residual)`, then the gated activation if there is one, and `x + residual`.

        Left out: one operation after the other.
        """
        return norm_product_gate(lambda normed: self.apply(layer, normed, bias), x, residual, norm_weight, eps, gate)

    def joins_gate(self, device_type: str) -> bool:
        """True where the gate before this product shares a launch with what the product does to its inputs.

        The layer is then asked for `apply_gated`, and the gate is left out behind the product before it. Left out: no.
        """
        return False

    def apply_gated(self, layer: ShardedModule, x: torch.Tensor, kind: Gate, bias: torch.Tensor | None) -> torch.Tensor:
        """The product over the gated activation of x [T, 2 * inputs]. Left out: one operation after the other."""
        return self.apply(layer, gated_activation(x, kind), bias)

    def coded(
        self, layers: Sequence[ShardedModule], biases: Sequence[torch.Tensor | None], outputs: int, inputs: int
    ) -> CodedMatrices | None:
        """Matrices [outputs, inputs] of experts, `layers` of this scheme that are filled, as one operation takes all.

        Left out, or None: each needs a product of its own.
        """
        return None

    def look_up(
        self, layer: ShardedModule, token_ids: torch.Tensor, first: int, count: int, hidden: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Rows of the tokens `first <= id < first + count`, zeros for others: int64 [T] -> [T, hidden] of `dtype`.

        Left out with `looks_up`: those of the dense weight.
        """
        return embed_shard(token_ids, layer.stored("weight"), first, count)


SchemeFor = Callable[[str], Scheme]
"""Path in the model of a linear layer, or of one part of a merged layer -> its scheme."""


def everywhere(scheme: Scheme) -> SchemeFor:
    """The same scheme at every path."""
    return lambda path: scheme


def norm_product_gate(
    product: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`apply_normed` around any product, in three operations: what no kernel joins, and what has an end open.

    `product` takes the normed [T, inputs] to [T, outputs].
    """
    if residual is None:
        normed, total = rms_norm(x, norm_weight, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm_weight, eps)
    wide = product(normed)
    return (wide if gate is None else gated_activation(wide, gate)), total
