"""Fill a model's parameters from a source, and account for every one and for every tensor."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import nn

from quire.worker.weights.header import CheckpointError
from quire.worker.weights.layout import Region, covering, share_of
from quire.worker.weights.names import NameMap
from quire.worker.weights.parts import Part
from quire.worker.weights.shard import ShardedModule
from quire.worker.weights.source import WeightSource

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
        return ".".join(filter(None, (self.owner, self.part.name, self.part.tensor or self.name)))

    @property
    def parameter(self) -> torch.Tensor:
        return self.module.get_parameter(self.name)


class Piece(NamedTuple):
    """The region of a tensor that goes to a place."""

    place: Place
    region: Region
    transposed: bool
    """Its two axes are those of the place the other way around."""


def places(model: nn.Module) -> Iterator[Place]:
    """Every part of every declared parameter."""
    for path, module in model.named_modules():
        if isinstance(module, ShardedModule):
            for name, parts in module.parts.items():
                for part in parts:
                    yield Place(path, module, name, part)


def materialise(module: ShardedModule, name: str, device: torch.device) -> None:
    """Give a module's parameter memory; what no part fills becomes zeros, all else is undefined."""
    empty = torch.empty_like(module.get_parameter(name), device=device)
    if sum(part.num_elements for part in module.parts[name]) < empty.numel():
        empty.zero_()
    module.register_parameter(name, nn.Parameter(empty, requires_grad=False))


def match(model: nn.Module, source: WeightSource, names: NameMap) -> dict[str, tuple[Piece, ...]]:
    """The places each tensor fills: every part has one, every tensor is used or ignored by name, shapes
    agree, and types as far as headers tell.

    Reads headers only, and takes a model without memory too. CheckpointError names what does not fit.
    """
    wanted = {place.path: place for place in places(model)}
    matched: dict[str, tuple[Piece, ...]] = {}
    filled: dict[str, str] = {}
    for name in source.names():
        if names.ignores(name):
            continue
        targets = names.targets(name)
        if targets is None or not wanted.keys() >= set(targets.paths):
            raise CheckpointError(f"{name}: the checkpoint holds this tensor, but the model has no place for it")
        for path in targets.paths:
            if path in filled:
                raise CheckpointError(f"{name}: {path} was already filled from {filled[path]}")
            filled[path] = name
        own = [wanted[path] for path in targets.paths]
        if (stored := source.dtype(name)) is not None:
            for place in own:
                _refuse_dtype(name, stored, place.parameter)
        try:
            held = targets.layout(tuple(place.part for place in own)).of_shape(source.shape(name))
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error}") from error
        pieces = zip(own, held.regions, strict=True)
        matched[name] = tuple(Piece(place, region, held.transposed) for place, region in pieces)
    missing = [path for path in wanted if path not in filled]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise CheckpointError(f"{source.origin} lacks the tensors for {shown}")
    return matched


def fill(model: nn.Module, source: WeightSource, names: NameMap, device: torch.device) -> int:
    """Match, then read tensor after tensor, dtypes converted -> bytes read. Raises CheckpointError.

    A parameter gets memory when its first tensor comes, and a module is finished when its last one has: what it becomes
    lies beside other modules that are finished, not beside the whole model as it is stored; one of which this rank
    holds nothing stays as it is. Files hold small tensors, like scales, before all large ones.
    """
    matched = match(model, source, names)
    missing = Counter(place.module for place in places(model))
    num_bytes = 0
    for name, pieces in matched.items():
        for piece in pieces:
            module = piece.place.module
            if piece.place.parameter.is_meta:
                materialise(module, piece.place.name, device)
            num_bytes += _fill(source, name, piece)
            missing[module] -= 1
            if not missing[module] and any(parameter.numel() for parameter in module.parameters(recurse=False)):
                module.finish()
    return num_bytes


def _fill(source: WeightSource, name: str, piece: Piece) -> int:
    part, parameter = piece.place.part, piece.place.parameter
    if part.num_elements == 0:
        return 0
    region = share_of(piece.region, part, transposed=piece.transposed)
    tensor = source.read(name, covering(region))
    _refuse_dtype(name, tensor.dtype, parameter)
    share = _select(tensor, region)
    part.of(parameter).copy_(share.T if piece.transposed else share)
    return tensor.nbytes


def _refuse_dtype(name: str, stored: torch.dtype, parameter: torch.Tensor) -> None:
    if stored != parameter.dtype and not {stored, parameter.dtype} <= CONVERTIBLE:
        raise CheckpointError(f"{name}: is stored as {stored}, which does not convert to {parameter.dtype}")


def _select(tensor: torch.Tensor, region: Region) -> torch.Tensor:
    """The region, out of what `covering` of it reads."""
    for axis, indices in enumerate(region):
        if isinstance(indices, list):
            tensor = tensor.index_select(axis, torch.tensor(indices) - min(indices))
    return tensor[tuple(0 if isinstance(indices, int) else slice(None) for indices in region)]
