"""The number of KV blocks and the longest sequence: decided once, the same on every rank."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from quire.worker.config import WorkerConfig
from quire.worker.device.device import Device
from quire.worker.device.parallel import Groups
from quire.worker.memory.kv_layout import KVLayout
from quire.worker.memory.shortage import MemoryShortage, MemoryTaken
from quire.worker.memory.usage import MemoryUsage
from quire.worker.specs.needs import too_little, too_long

_CPU_SHARE = 4
_CPU_MOST_BYTES = 4 << 30
_CONTEXT_MOST_BYTES = 1 << 30
"""Most that this process takes of a device before anything is counted; with more in use, others hold some."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Capacity:
    num_blocks: int
    max_model_len: int


class MemoryShare:
    """This engine's own part of a device. What others hold does not count against it, only that it must be free."""

    def __init__(self, device: Device, usage: MemoryUsage, fraction: float) -> None:
        """Raises `MemoryTaken`."""
        self._device = device
        self._usage = usage
        self._fraction = fraction
        self.num_bytes = int(device.total_memory() * fraction)
        self.check_free()

    def left(self, held: int) -> int:
        """Bytes that are not taken of it, if torch holds `held` of the device."""
        return self.num_bytes - self._usage.taken(held)

    def check_free(self) -> None:
        """Raises `MemoryTaken` when what is not taken of the share yet is not free."""
        left, free = self.left(self._device.held_memory()), self._device.free_memory()
        if left <= free:
            return
        total, taken = self._device.total_memory(), self.num_bytes - left
        others = total - free - taken
        rest = "other processes hold the rest; lower it, or end them"
        if others <= _CONTEXT_MOST_BYTES:
            rest = "nobody else holds the rest, which every process takes for itself; lower it"
        largest = 100 * (free + taken) // total / 100
        raise MemoryTaken(
            f"gpu_memory_utilization: {self._fraction} of {total} bytes asks for {left} bytes, but only {free} bytes "
            f"are free: {rest}; the largest that is free is {largest}"
        )

    def report(self) -> None:
        """Warn when more was taken than promised; after the last thing that takes memory."""
        taken = self._usage.taken(self._device.held_memory())
        log = _log.warning if taken > self.num_bytes else _log.info
        log("device memory: %d bytes are taken, of %d that gpu_memory_utilization allows", taken, self.num_bytes)


def memory_share(config: WorkerConfig, device: Device, usage: MemoryUsage, *, paged: bool) -> MemoryShare | None:
    """This engine's share of the device; None on the CPU, with a KV memory of a given size, or without one.

    Raises `MemoryTaken`.
    """
    if not device.has_own_memory or config.kv_cache_memory_bytes or not paged:
        return None
    return MemoryShare(device, usage, config.gpu_memory_utilization)


def kv_budget(config: WorkerConfig, device: Device, share: MemoryShare | None, profile: Callable[[], int]) -> int:
    """Bytes for the KV cache of this rank.

    As configured; else on CUDA what the worst step, run by `profile`, leaves of the engine's share; else on the CPU
    4 GiB or a quarter of the free memory, whichever is less. `profile` returns the bytes of the cache it ran on, which
    is gone afterwards. Raises `MemoryShortage`.
    """
    if config.kv_cache_memory_bytes:
        if config.kv_cache_memory_bytes > device.total_memory():
            raise MemoryShortage(
                f"kv_cache_memory_bytes: {config.kv_cache_memory_bytes} is more than all the memory there is, "
                f"{device.total_memory()} bytes; lower it"
            )
        if device.has_own_memory:
            device.reset_peak()  # loading is over: what torch kept of it is free again
            if config.kv_cache_memory_bytes > (free := device.free_memory()):
                raise MemoryTaken(
                    f"kv_cache_memory_bytes: {config.kv_cache_memory_bytes} bytes are asked for, but only {free} are "
                    "free beside the weights; lower it, or end what else uses the device"
                )
        return config.kv_cache_memory_bytes
    if share is None:
        return min(_CPU_MOST_BYTES, device.free_memory() // _CPU_SHARE)
    device.reset_peak()
    own_cache = profile()
    device.synchronize()
    budget = share.left(device.peak_memory()) + own_cache
    device.reset_peak()  # what the worst step took is free again
    share.check_free()
    return budget


def unpaged_capacity(config: WorkerConfig, layout: KVLayout, context_length: int) -> Capacity:
    """Capacity of a model without a cache: blocks only account for prompts, one whole one for each slot.

    Raises `MemoryShortage`.
    """
    _check_length(config, context_length)
    longest = config.max_model_len or context_length
    return Capacity(config.max_num_seqs * layout.blocks_for(longest), longest)


def fit_capacity(
    config: WorkerConfig, groups: Groups, budget_bytes: int, layout: KVLayout, context_length: int
) -> Capacity:
    """Blocks and context length for the least budget of all ranks. Raises `MemoryShortage`.

    A context length the user named is kept or refused; the model's own is lowered to what one sequence can have.
    """
    _check_length(config, context_length)
    num_blocks = groups.minimum(max(0, budget_bytes) // layout.block_bytes)
    wanted = config.max_model_len or context_length
    held = layout.tokens_in(num_blocks, wanted)
    if not held or (config.max_model_len and held < wanted):
        needed = layout.blocks_for(wanted) * layout.block_bytes
        raise MemoryShortage(
            f"{too_little(wanted, needed, budget_bytes, held)}; "
            "lower max_model_len, or raise kv_cache_memory_bytes or gpu_memory_utilization"
        )
    if held < wanted:
        _log.warning("max_model_len lowered from %d to %d: the KV memory holds no more", wanted, held)
    return Capacity(num_blocks, min(wanted, held))


def _check_length(config: WorkerConfig, context_length: int) -> None:
    if config.max_model_len > context_length:
        raise MemoryShortage(too_long(config.max_model_len, context_length))
