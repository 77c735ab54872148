"""Big tables in the memory of the host."""

import contextlib
import ctypes
import math
import mmap
import os
from collections.abc import Iterable

import torch

_HUGE_PAGE = 2 << 20


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that cost memory on the CPU only once they are written: big tables are mostly never touched.

    They lie in huge pages where the system has them: a KV cache is read all over, and small pages would cost more to
    find than to read.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a hint, which a kernel may not know
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).reshape(shape)


def lock(tensors: Iterable[torch.Tensor]) -> None:
    """Keep the pages of these CPU tensors in memory, mlock(2). Raises OSError where the process may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    for tensor in tensors:
        if libc.mlock(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def release_freed() -> None:
    """Give the system back what the allocator keeps of freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
