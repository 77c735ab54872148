"""The stages behind the pooling of an embedding model, whole on every rank and in float32: its vector is the answer."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from quire.worker.build_context import BuildContext
from quire.worker.models.classifier import Projection
from quire.worker.specs.sentence.stages import StageSpec
from quire.worker.weights.checkpoint import Checkpoint
from quire.worker.weights.dummy import SAME_NAMES, fill_dummy
from quire.worker.weights.load import fill, match
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule

SHORTEST = 1e-12
"""Least length by which a vector is divided, as sentence-transformers has it."""


class Dense(nn.Module):
    """`activation(W x + b)`, perhaps plus the input. Its parts have the names that its file gives them."""

    def __init__(self, spec: StageSpec, context: BuildContext) -> None:
        super().__init__()
        self.linear = Projection(context, spec.inputs, spec.outputs, spec.bias)
        self.activation: nn.Module = getattr(nn, spec.activation)()
        self.adds = spec.residual
        widens = spec.residual and spec.inputs != spec.outputs
        self.residual = Projection(context, spec.inputs, spec.outputs, bias=False) if widens else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [S, inputs] -> float32 [S, outputs]"""
        out: torch.Tensor = self.activation(self.linear(x))
        if not self.adds:
            return out
        return out + (x if self.residual is None else self.residual(x))


class Affine(ShardedModule):
    """Numbers of mean 0 and variance 1, times a gain, plus a bias."""

    def __init__(self, context: BuildContext, size: int) -> None:
        super().__init__()
        for name in ("weight", "bias"):
            self.declare(name, context.dtype, (Part("", (whole(size),)),))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [S, size] -> float32 [S, size]"""
        return nn.functional.layer_norm(x, x.shape[-1:], self.stored("weight"), self.stored("bias"))


class LayerNorm(nn.Module):
    """A LayerNorm under the name that its file gives it."""

    def __init__(self, spec: StageSpec, context: BuildContext) -> None:
        super().__init__()
        self.norm = Affine(context, spec.inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [S, size] -> float32 [S, size]"""
        out: torch.Tensor = self.norm(x)
        return out


class Normalize(nn.Module):
    """Vectors of length 1."""

    def __init__(self, spec: StageSpec, context: BuildContext) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [S, size] -> float32 [S, size]"""
        return nn.functional.normalize(x, dim=-1, eps=SHORTEST)


BUILDERS: dict[str, type[Dense | LayerNorm | Normalize]] = {
    "dense": Dense,
    "layer_norm": LayerNorm,
    "normalize": Normalize,
}


def match_stages(model_dir: Path, specs: Sequence[StageSpec], context: BuildContext) -> int:
    """Number of the tensors in the stages' files, each of which has its place. Raises CheckpointError.

    Reads headers only.
    """
    found = 0
    for spec, stage in zip(specs, _build(specs, context), strict=True):
        if spec.folder:
            with Checkpoint(model_dir / spec.folder) as checkpoint:
                found += len(match(stage, checkpoint, SAME_NAMES))
    return found


def _build(specs: Sequence[StageSpec], context: BuildContext) -> nn.Sequential:
    context = replace(context, dtype=torch.float32)
    return nn.Sequential(*(BUILDERS[spec.kind](spec, context) for spec in specs))


def load_stages(
    model_dir: Path,
    specs: Sequence[StageSpec],
    context: BuildContext,
    load_format: Literal["auto", "safetensors", "dummy"],
    seed: int,
) -> nn.Sequential:
    """The stages with their weights, each from its own folder. Raises CheckpointError for files that do not fit."""
    stages = _build(specs, context)
    for spec, stage in zip(specs, stages, strict=True):
        if load_format == "dummy":
            fill_dummy(stage, seed, context.device)
        elif spec.folder:
            with Checkpoint(model_dir / spec.folder) as checkpoint:
                fill(stage, checkpoint, SAME_NAMES, context.device)
    return stages.eval()
