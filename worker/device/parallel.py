"""The tensor-parallel group: rank, size and three collectives, the same code over NCCL, Gloo or nothing."""

import os
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist


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

    def close(self) -> None: ...


class SingleGroup:
    """One rank: a complete engine without any process group."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def minimum(self, value: int) -> int:
        return value

    def close(self) -> None:
        return None


class ProcessGroup:
    """Several ranks over NCCL (CUDA) or Gloo (CPU), meeting at a file in the private run directory: no fixed port."""

    def __init__(
        self, rank: int, size: int, device: torch.device, rendezvous: str, timeout_seconds: float = 600.0
    ) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.FileStore(rendezvous, size)  # type: ignore[attr-defined]  # public, but not in __all__
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_seconds),
            device_id=device if device.type == "cuda" else None,
        )
        self.rank = rank
        self.size = size
        self._device = device

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim=-1)

    def minimum(self, value: int) -> int:
        tensor = torch.tensor([value], dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        return int(tensor.item())

    def close(self) -> None:
        dist.destroy_process_group()
