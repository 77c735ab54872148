"""Normalisation with learned parameters: by the root mean square, or by mean and variance."""

from typing import Protocol

import torch

from quire.kernels.linear.layer_norm import layer_norm
from quire.kernels.linear.norm import add_rms_norm, rms_norm
from quire.worker.build_context import BuildContext
from quire.worker.specs.spec import NormKind, NormSpec
from quire.worker.weights.parts import Part, Slice, whole
from quire.worker.weights.shard import ShardedModule


class Norm(Protocol):
    """A norm before a layer or behind it."""

    joins: bool
    """A product behind it may compute it, by `weight` and `eps` as `rms_norm` does."""
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, size] -> the same shape"""
        ...

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, the sum)"""
        ...

    def stored(self, name: str) -> torch.Tensor: ...


def build_norm(context: BuildContext, size: int, spec: NormSpec) -> "RMSNorm | CentredNorm":
    """The norm of a decoder that a spec describes."""
    if spec.kind == "layer":
        return CentredNorm(context, size, spec.eps)
    return RMSNorm(context, size, spec.eps, spec.kind)


class RMSNorm(ShardedModule):
    """By the root mean square, with a gain of one of the kinds that have no mean."""

    def __init__(self, context: BuildContext, size: int, eps: float, kind: NormKind = "rms") -> None:
        super().__init__()
        self.eps = eps
        self.from_one = kind == "rms_from_one"
        dtype = torch.float32 if NormSpec(eps, kind).is_wide else context.dtype
        self.joins = dtype == context.dtype
        self.weight: torch.Tensor
        self.declare("weight", dtype, (Part("", (whole(size),)),))

    def finish(self) -> None:
        if self.from_one:
            self.stored("weight").add_(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape"""
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, the sum)"""
        return add_rms_norm(x, residual, self.weight, self.eps)


class GainlessNorm:
    """RMS norm that has learned nothing."""

    def __init__(self, context: BuildContext, size: int, eps: float) -> None:
        self.eps = eps
        self.gains = torch.ones(size, dtype=context.dtype, device=context.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape"""
        return rms_norm(x, self.gains, self.eps)


class SharedRMSNorm(ShardedModule):
    """The gains of an RMS norm over an axis of which each rank holds a share, or several ranks the same."""

    def __init__(self, context: BuildContext, share: Slice, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.size = share.length
        self.declare("weight", context.dtype, (Part("", (share,)),))


class CentredNorm(ShardedModule):
    """Layer norm with a gain and no bias."""

    joins = False

    def __init__(self, context: BuildContext, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.declare("weight", context.dtype, (Part("", (whole(size),)),))

    def finish(self) -> None:
        self._no_bias = torch.zeros_like(self.stored("weight"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, size] -> the same shape"""
        return layer_norm(x, None, self.stored("weight"), self._no_bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, the sum)"""
        total = residual + x
        return self(total), total


class LayerNorm(ShardedModule):
    """Layer norm with gain and bias, after a residual addition."""

    def __init__(self, context: BuildContext, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "bias"):
            self.declare(name, context.dtype, (Part("", (whole(size),)),))

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Norm of the sum: [T, size] -> [T, size]"""
        return layer_norm(x, residual, self.stored("weight"), self.stored("bias"), self.eps)
