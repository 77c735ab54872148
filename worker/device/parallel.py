"""The groups of a rank: rank, size and three collectives each, the same code over NCCL, Gloo or nothing."""

import mmap
import os
import select
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from quire.kernels.cpu.exchange import Exchange, memory_bytes
from quire.proto.messages.plans import GroupFacts
from quire.worker.device.shared_memory import shared_memory


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


class HostGroup(ProcessGroup):
    """Ranks on the processors of one machine: what a step adds up and gathers goes through memory that they share."""

    def __init__(self, rank: int, size: int, handle: dist.ProcessGroup | None, memory: mmap.mmap) -> None:
        super().__init__(rank, size, torch.device("cpu"), handle)
        self._exchange = Exchange(memory, rank, size)
        pids = super().all_gather(torch.tensor([os.getpid()])).tolist()
        peers = [os.pidfd_open(pid) for place, pid in enumerate(pids) if place != rank]
        threading.Thread(target=self._watch, args=(peers,), name="peers", daemon=True).start()

    def _watch(self, peers: list[int]) -> None:
        """Wait until one of these processes ends. A socket would say it by itself."""
        poll = select.poll()
        for peer in peers:
            poll.register(peer, select.POLLIN)
        poll.poll()
        self._exchange.lose()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() != 2 or not tensor.is_floating_point() or not tensor.is_contiguous():
            return super().all_reduce(tensor)
        self._exchange.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange.all_gather(tensor.contiguous()).unbind(), dim=-1)


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
    """Meet all ranks over NCCL (CUDA) or Gloo (CPU), at a file in the private run directory: no fixed port.

    On CPUs Gloo is for what is not a step's. Raises OSError where ranks may not share memory.
    """
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
    return Groups(_member_of(stages, rank, device, store), _member_of(places, rank, device, store))


def _member_of(partition: Sequence[range], rank: int, device: torch.device, store: Store) -> Group:
    """The part that has this rank. Every rank calls it with the same parts in the same order."""
    mine = next(part for part in partition if rank in part)
    handles = [None] * len(partition)  # of all ranks together
    if len(partition) > 1:
        handles = [dist.new_group(list(part)) if len(part) > 1 else None for part in partition]
    if len(mine) == 1:
        return SingleGroup()
    place, handle = mine.index(rank), handles[partition.index(mine)]
    if device.type == "cuda":
        return ProcessGroup(place, len(mine), device, handle)
    return HostGroup(place, len(mine), handle, shared_memory(store, str(mine), place == 0, memory_bytes(len(mine))))
