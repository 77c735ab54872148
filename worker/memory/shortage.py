"""Memory that is not there: the errors, and the sentence about an allocation that found none. No torch here."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from quire.proto.process.sizes import format_bytes

Place = Literal["weights", "cache", "encoder", "step", "graphs"]

_KNOBS: dict[Place, str] = {
    "weights": "share them among more devices with tensor_parallel_size, or choose a smaller model",
    "cache": "lower kv_cache_memory_bytes or gpu_memory_utilization",
    "encoder": "lower mm_encoder_cache_bytes or max_num_encoder_patches, or set language_model_only",
    "step": "lower max_num_batched_tokens, max_num_seqs or gpu_memory_utilization",
    "graphs": "lower gpu_memory_utilization, or do without them: enforce_eager",
}
_CPU_KNOBS: dict[Place, str] = _KNOBS | {
    "weights": "choose a smaller model, dtype bfloat16 or quantization int8",
    "cache": "lower kv_cache_memory_bytes",
    "step": "lower max_num_batched_tokens, max_num_seqs or kv_cache_memory_bytes",
    "graphs": "lower max_num_batched_tokens, max_num_seqs or kv_cache_memory_bytes, or do without it: enforce_eager",
}
_TEXTS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Words of RuntimeErrors: of torch's allocators for either device, the driver, Triton, and a library of products."""


class Memory(Protocol):
    """The counts of a device that are told when there is too little."""

    @property
    def has_own_memory(self) -> bool: ...

    def total_memory(self) -> int: ...

    def free_memory(self) -> int: ...

    def held_memory(self) -> int: ...


class MemoryShortage(ValueError):
    """The KV memory cannot hold what was asked for."""


class MemoryTaken(MemoryShortage):
    """Other processes hold what was asked for; they may give it back."""


def ran_out(error: Exception) -> bool:
    """True for an allocation that found no memory, the device's or the machine's."""
    if isinstance(error, RuntimeError):  # torch.OutOfMemoryError is one
        return any(text in str(error) for text in _TEXTS)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def shortage(error: Exception, device: Memory, what: str, place: Place) -> MemoryTaken:
    """The sentence for an error that `ran_out`: sizes, and what to change."""
    asked = re.search(r"tried to allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
    size = f" asked for {asked[1]} {asked[2]} more and" if asked else ""
    memory = f"{format_bytes(device.free_memory())} of {format_bytes(device.total_memory())} are free"
    whose, knob = "memory", _CPU_KNOBS[place]
    if device.has_own_memory:
        whose, knob = "device memory", _KNOBS[place]
        memory += f", this process holds {format_bytes(device.held_memory())}"
    return MemoryTaken(f"{what}{size} ran out of {whose}: {memory}; {knob}, or end what else uses it")


@contextmanager
def refusing(device: Memory, what: str, place: Place) -> Iterator[None]:
    """Raise `MemoryTaken` when memory ends inside: by then all of it was measured or asked for."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not ran_out(error):
            raise
        raise shortage(error, device, what, place) from error
