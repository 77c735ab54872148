"""How many KV blocks there are and how long a sequence may be: decided once, the same on every rank."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from quire.worker.config import WorkerConfig
from quire.worker.device import Device
from quire.worker.parallel import Group

_CPU_SHARE = 4
_CPU_MOST_BYTES = 4 << 30

_log = logging.getLogger(__name__)


class MemoryShortage(ValueError):
    """The KV memory cannot hold what was asked for."""


@dataclass(frozen=True, slots=True)
class Capacity:
    num_blocks: int
    max_model_len: int


def kv_budget(config: WorkerConfig, device: Device, profile: Callable[[], int]) -> int:
    """Bytes for the KV cache of this rank.

    As configured; else on CUDA what the worst step, run by `profile`, leaves of the share of memory we may use; else on
    the CPU 4 GiB or a quarter of the free memory, whichever is less. `profile` returns the bytes of the cache it ran
    on, which is gone afterwards. Raises `MemoryShortage`.
    """
    if config.kv_cache_memory_bytes:
        if config.kv_cache_memory_bytes > device.total_memory():
            raise MemoryShortage(
                f"kv_cache_memory_bytes: {config.kv_cache_memory_bytes} is more than all the memory there is, "
                f"{device.total_memory()} bytes; lower it"
            )
        return config.kv_cache_memory_bytes
    if not device.is_cuda:
        return min(_CPU_MOST_BYTES, device.free_memory() // _CPU_SHARE)
    device.reset_peak()
    resident = device.total_memory() - device.free_memory()
    before = device.peak_memory()
    own_cache = profile()
    device.synchronize()
    needed = device.peak_memory() - before - own_cache
    return int(device.total_memory() * config.gpu_memory_utilization) - resident - needed


def unpaged(config: WorkerConfig, context_length: int) -> Capacity:
    """For a model without a cache: blocks take no memory and only account for prompts, one whole one for each slot.

    Raises `MemoryShortage`.
    """
    _check_length(config, context_length)
    longest = config.max_model_len or context_length
    return Capacity(config.max_num_seqs * -(-longest // config.block_size), longest)


def fit(config: WorkerConfig, group: Group, budget_bytes: int, block_bytes: int, context_length: int) -> Capacity:
    """Blocks and context length for the least budget of all ranks. Raises `MemoryShortage`.

    A context length the user named is kept or refused; the model's own is lowered to what one sequence can have.
    """
    _check_length(config, context_length)
    num_blocks = group.minimum(max(0, budget_bytes) // block_bytes)
    held = num_blocks * config.block_size
    wanted = config.max_model_len or context_length
    if not num_blocks or (config.max_model_len and held < wanted):
        needed = -(-wanted // config.block_size) * block_bytes
        raise MemoryShortage(
            f"max_model_len: one sequence of {wanted} tokens needs {needed} bytes of KV memory, "
            f"but there are {max(0, budget_bytes)}, enough for {held} tokens; "
            "lower max_model_len, or raise kv_cache_memory_bytes or gpu_memory_utilization"
        )
    if held < wanted:
        _log.warning("max_model_len lowered from %d to %d: the KV memory holds no more", wanted, held)
    return Capacity(num_blocks, min(wanted, held))


def _check_length(config: WorkerConfig, context_length: int) -> None:
    if config.max_model_len > context_length:
        raise MemoryShortage(
            f"max_model_len: {config.max_model_len} is more than the model's context length {context_length}; lower it"
        )
