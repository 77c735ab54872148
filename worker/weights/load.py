"""Fill a model's parameters from a checkpoint, and account for every one and for every tensor."""

from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from quire.worker.weights.checkpoint import Checkpoint, CheckpointError
from quire.worker.weights.names import NameMap, ParameterPart
from quire.worker.weights.shard import ShardedModule, ShardPart

CONVERTIBLE: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Dtypes converted into each other while streaming; any other must be the parameter's own."""

Place = tuple[torch.Tensor, ShardPart]


def places(model: nn.Module) -> Iterator[tuple[ParameterPart, Place]]:
    """Every part of every declared parameter: where it is named, and where it goes."""
    for path, module in model.named_modules():
        if isinstance(module, ShardedModule):
            for name, parts in module.parts.items():
                parameter = module.get_parameter(name)
                for part in parts:
                    yield ParameterPart(f"{path}.{name}" if path else name, part.name), (parameter, part)


def materialise(model: nn.Module, device: torch.device) -> None:
    """Give the parameters memory on `device`; rows that no part fills become zeros, all others are undefined."""
    model.to_empty(device=device)
    for module in model.modules():
        if isinstance(module, ShardedModule):
            for name, parts in module.parts.items():
                module.get_parameter(name)[parts[-1].rows.stop :] = 0.0


def match(model: nn.Module, checkpoint: Checkpoint, names: NameMap) -> dict[str, ParameterPart]:
    """The part each tensor fills: every part has one, every tensor is used or ignored by name, shapes agree.

    Reads headers only, and takes a model without memory too. CheckpointError names what does not fit.
    """
    wanted = dict(places(model))
    matched: dict[str, ParameterPart] = {}
    filled: dict[ParameterPart, str] = {}
    for name in checkpoint.names():
        if names.ignores(name):
            continue
        target = names.target(name)
        if target is None or target not in wanted:
            raise CheckpointError(f"{name}: the checkpoint holds this tensor, but the model has no place for it")
        if target in filled:
            raise CheckpointError(f"{name}: {_named(target)} was already filled from {filled[target]}")
        shape, full_shape = checkpoint.shape(name), wanted[target][1].full_shape
        if shape != full_shape:
            raise CheckpointError(f"{name}: has shape {list(shape)}, the config describes {list(full_shape)}")
        matched[name] = target
        filled[target] = name
    missing = [_named(target) for target in wanted if target not in filled]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise CheckpointError(f"{checkpoint.folder} lacks the tensors for {shown}")
    return matched


def fill_from_checkpoint(model: nn.Module, checkpoint: Checkpoint, names: NameMap, device: torch.device) -> int:
    """Match, then materialise and fill, dtypes converted -> bytes read. Raises CheckpointError."""
    matched = match(model, checkpoint, names)
    materialise(model, device)
    where = dict(places(model))
    return sum(_fill(checkpoint, name, *where[target]) for name, target in matched.items())


def _fill(checkpoint: Checkpoint, name: str, parameter: torch.Tensor, part: ShardPart) -> int:
    if part.num_elements == 0:
        return 0
    tensor = checkpoint.read(name, part.region)
    if tensor.dtype != parameter.dtype and not {tensor.dtype, parameter.dtype} <= CONVERTIBLE:
        raise CheckpointError(f"{name}: is stored as {tensor.dtype}, which does not convert to {parameter.dtype}")
    parameter[part.rows].copy_(tensor)
    return tensor.nbytes


def _named(target: ParameterPart) -> str:
    return f"{target.parameter} (part {target.part})" if target.part else target.parameter
