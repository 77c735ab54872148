"""Ranks on one machine add up and gather tensors through memory that they share: microseconds, where a socket takes a
turn of the kernel for each rank, and a call that a tape can note."""

import ctypes
import mmap

import numpy as np
import torch

from quire.kernels.cpu.native import dtype_code, native, recorder
from quire.kernels.cpu.tape import NotNativeError

SLOT_BYTES = 64 << 20
"""Bytes of a tensor that go through at once, at most; memory that is never written is none."""
_LINE_BYTES = 64
_LOST = 5
"""Place in the struct of exchange.hpp."""


class PeerLostError(RuntimeError):
    """A rank has ended: what the others would add up does not come."""


def memory_bytes(size: int) -> int:
    """Shared memory that an exchange of `size` ranks needs, all zeros at first."""
    return size * (_LINE_BYTES + 2 * SLOT_BYTES)


class Exchange:
    """One rank's end. All ranks make the same calls in the same order; each waits for everybody until one is lost."""

    def __init__(self, memory: mmap.mmap, rank: int, size: int) -> None:
        """`memory`: `memory_bytes(size)` that all ranks have mapped."""
        self._memory = memory
        self._size = size
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._state = np.array([address, rank, size, SLOT_BYTES, 0, 0], dtype=np.int64)
        """The struct of exchange.hpp."""

    def lose(self) -> None:
        """A peer has ended. Calls, those that wait too, end with PeerLostError; one on a tape means nothing."""
        self._state[_LOST] = 1

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum of [T, n] float32, bfloat16 or float16 over the ranks, in place: added up in float32, rank by rank."""
        rows = tensor.shape[0]
        if recorder.get() is not None and tensor.nbytes > SLOT_BYTES:
            raise NotNativeError(f"ranks add up {tensor.nbytes} bytes in more than one part")
        native().quire_all_reduce(
            self._state.ctypes.data,
            dtype_code("tensor", tensor),
            tensor.data_ptr(),
            rows,
            tensor.shape[1],
            torch.get_num_threads(),
        )
        self._check()

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """[...] of any dtype -> [size, ...] in the order of the ranks."""
        out = tensor.new_empty((self._size, *tensor.shape))
        native().quire_all_gather(
            self._state.ctypes.data, tensor.data_ptr(), tensor.nbytes, out.data_ptr(), torch.get_num_threads()
        )
        self._check()
        return out

    def _check(self) -> None:
        if self._state[_LOST]:
            raise PeerLostError("a peer of this rank has ended in the middle of a step")
