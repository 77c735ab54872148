"""Fill a model's parameters from a checkpoint, and account for every one and for every tensor."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import nn

from quire.worker.weights.checkpoint import Checkpoint, CheckpointError
from quire.worker.weights.names import NameMap
from quire.worker.weights.shard import Part, ShardedModule

CONVERTIBLE: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes converted into each other while streaming; any other must be the parameter's own."""


class Place(NamedTuple):
    """The place of one part of a parameter in the model."""

    owner: str
    """Path of the module."""
    module: ShardedModule
    name: str
    """Name of the parameter."""
    part: Part

    @property
    def path(self) -> str:
        """The path that name maps know: "blocks.0.attention.qkv.q.weight"."""
        return ".".join(filter(None, (self.owner, self.part.name, self.name)))

    @property
    def parameter(self) -> torch.Tensor:
        return self.module.get_parameter(self.name)


def places(model: nn.Module) -> Iterator[Place]:
    """Every part of every declared parameter."""
    for path, module in model.named_modules():
        if isinstance(module, ShardedModule):
            for name, parts in module.parts.items():
                for part in parts:
                    yield Place(path, module, name, part)


def materialise(model: nn.Module, device: torch.device) -> None:
    """Give the parameters memory on `device`; what no part fills becomes zeros, all else is undefined."""
    model.to_empty(device=device)
    for module in model.modules():
        if isinstance(module, ShardedModule):
            for name, parts in module.parts.items():
                parameter = module.get_parameter(name)
                if sum(part.num_elements for part in parts) < parameter.numel():
                    parameter.zero_()


def match(model: nn.Module, checkpoint: Checkpoint, names: NameMap) -> dict[str, Place]:
    """The place each tensor fills: every part has one, every tensor is used or ignored by name, shapes agree.

    Reads headers only, and takes a model without memory too. CheckpointError names what does not fit.
    """
    wanted = {place.path: place for place in places(model)}
    matched: dict[str, Place] = {}
    filled: dict[str, str] = {}
    for name in checkpoint.names():
        if names.ignores(name):
            continue
        target = names.target(name)
        if target is None or target not in wanted:
            raise CheckpointError(f"{name}: the checkpoint holds this tensor, but the model has no place for it")
        if target in filled:
            raise CheckpointError(f"{name}: {target} was already filled from {filled[target]}")
        shape, full_shape = checkpoint.shape(name), wanted[target].part.full_shape
        if shape != full_shape:
            raise CheckpointError(f"{name}: has shape {list(shape)}, the config describes {list(full_shape)}")
        matched[name] = wanted[target]
        filled[target] = name
    missing = [target for target in wanted if target not in filled]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise CheckpointError(f"{checkpoint.folder} lacks the tensors for {shown}")
    return matched


def fill_from_checkpoint(model: nn.Module, checkpoint: Checkpoint, names: NameMap, device: torch.device) -> int:
    """Match, then materialise and fill, dtypes converted -> bytes read. Raises CheckpointError."""
    matched = match(model, checkpoint, names)
    materialise(model, device)
    return sum(_fill(checkpoint, name, place) for name, place in matched.items())


def _fill(checkpoint: Checkpoint, name: str, place: Place) -> int:
    part, parameter = place.part, place.parameter
    if part.num_elements == 0:
        return 0
    tensor = checkpoint.read(name, part.region)
    if tensor.dtype != parameter.dtype and not {tensor.dtype, parameter.dtype} <= CONVERTIBLE:
        raise CheckpointError(f"{name}: is stored as {tensor.dtype}, which does not convert to {parameter.dtype}")
    part.of(parameter).copy_(tensor)
    return tensor.nbytes
