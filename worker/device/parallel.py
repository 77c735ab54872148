"""The groups of a rank: rank, size and three collectives each, the same code over NCCL, Gloo or nothing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from quire.proto.messages.plans import GroupFacts


class Group(Protocol):
    """The collectives a layer may ask of its group. With one rank every collective returns its argument."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place; every rank gets the same bits."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate along the last dimension in rank order: [..., k] -> [..., size * k]."""
        ...

    def minimum(self, value: int) -> int:
        """The least of all ranks' values."""
        ...


class SingleGroup:
    """One rank, which needs nobody."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def minimum(self, value: int) -> int:
        return value


ALONE = SingleGroup()


class ProcessGroup:
    """Several ranks, connected by `connect`. `handle` None: all that are connected."""

    def __init__(self, rank: int, size: int, device: torch.device, handle: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        self._handle = handle

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor, group=self._handle)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self._handle)
        return torch.cat(parts, dim=-1)

    def minimum(self, value: int) -> int:
        tensor = torch.tensor([value], dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN, group=self._handle)
        return int(tensor.item())


@dataclass(frozen=True, slots=True)
class Groups:
    """The two groups of a rank: rank `stage * tensor.size + tensor.rank` of all. Without arguments: one rank alone."""

    tensor: Group = ALONE
    """Ranks of the same stage: layers divide themselves among them."""
    pipeline: Group = ALONE
    """Ranks at the same place of every stage, in the order in which a step runs through them: its rank is the stage."""

    @property
    def facts(self) -> GroupFacts:
        """The shape that all ranks declare. The first rank of the last stage reports."""
        stages, size = self.pipeline.size, self.tensor.size
        return GroupFacts(
            world_size=stages * size, num_stages=stages, reporter=(stages - 1) * size, max_in_flight=stages + 1
        )

    @property
    def reports(self) -> bool:
        """This rank is the reporter."""
        return self.pipeline.rank * self.tensor.size + self.tensor.rank == self.facts.reporter

    def minimum(self, value: int) -> int:
        """The least of all ranks' values, in all stages."""
        return self.pipeline.minimum(self.tensor.minimum(value))

    def close(self) -> None:
        """Disconnect. What recorded a collective must be gone."""
        if dist.is_initialized():
            dist.destroy_process_group()


def connect(
    rank: int,
    tensor_size: int,
    num_stages: int,
    device: torch.device,
    rendezvous: str,
    timeout_seconds: float = 600.0,
) -> Groups:
    """Meet all ranks over NCCL (CUDA) or Gloo (CPU), at a file in the private run directory: no fixed port."""
    world_size = tensor_size * num_stages
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(rendezvous, world_size)  # type: ignore[attr-defined]  # public, but not in __all__
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if device.type == "cuda" else None,
    )
    stages = [range(first, first + tensor_size) for first in range(0, world_size, tensor_size)]
    places = [range(place, world_size, tensor_size) for place in range(tensor_size)]
    return Groups(_member_of(stages, rank, device), _member_of(places, rank, device))


def _member_of(partition: Sequence[range], rank: int, device: torch.device) -> Group:
    """The part that has this rank. Every rank calls it with the same parts in the same order."""
    if len(partition) == 1:
        return ProcessGroup(rank, len(partition[0]), device)
    handles = [dist.new_group(list(part)) if len(part) > 1 else None for part in partition]
    mine = next(number for number, part in enumerate(partition) if rank in part)
    if handles[mine] is None:
        return SingleGroup()
    return ProcessGroup(partition[mine].index(rank), len(partition[mine]), device, handles[mine])
