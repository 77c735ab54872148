"""The step's upload: columns laid side by side in pinned memory and copied to the device in one go.

The device buffer stays where it is, so a captured graph finds the rows of every step at the address it was captured
with. The host buffers form a ring: the copy of the step before may still be under way while the next is written.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quire.worker.device.device import Device
from quire.worker.device.marks import Mark

DEPTH = 3
CAPACITY = 1 << 20
"""Bytes besides the rows; a step that needs more (it admits very long prompts) uploads the excess by itself."""

_ALIGNMENT = 16
_ROW_COLUMNS = 3
_KINDS = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Upload:
    """`begin`, then `put` and `put_rows`, then `send`; the tensors returned mean something after `send`."""

    def __init__(self, device: Device, max_rows: int, capacity: int = CAPACITY) -> None:
        self._device = device
        self._max_rows = max_rows
        self._first = _aligned(4 * _ROW_COLUMNS * max_rows)
        self._hosts, self._target = device.upload_buffers(self._first + capacity, DEPTH)
        self._bytes = [host.numpy() for host in self._hosts]
        self._sent: list[Mark | None] = [None] * len(self._hosts)
        self._current = 0
        self._used = self._first
        self.rows = self._target[: 4 * _ROW_COLUMNS * max_rows].view(torch.int32).view(_ROW_COLUMNS, max_rows)
        """int32 [3, max_rows] on the device: slot, known tokens that are not computed, and tokens to run of each row;
        0 behind the last."""

    def begin(self) -> None:
        """Start the next step's upload."""
        self._current = (self._current + 1) % len(self._hosts)
        sent = self._sent[self._current]
        if sent is not None:
            sent.wait()
        self._used = self._first

    def put_rows(self, columns: tuple[npt.NDArray[np.int64], ...], num_rows: int) -> None:
        """The first rows of `rows`; padding up to `num_rows` runs no token."""
        table = self._bytes[self._current][: 4 * _ROW_COLUMNS * self._max_rows].view(np.int32)
        table = table.reshape(_ROW_COLUMNS, self._max_rows)
        given = len(columns[0])
        for line, column in zip(table, columns, strict=True):
            line[:given] = column
            line[given:num_rows] = 0

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array's place on the device."""
        begin, end = self._used, self._used + array.nbytes
        if end > self._target.numel():
            return self._device.upload(array)
        self._bytes[self._current][begin:end].view(array.dtype)[...] = array.ravel()
        self._used = _aligned(end)
        return self._target[begin:end].view(_KINDS[array.dtype]).view(array.shape)

    def send(self) -> None:
        """Queue the copy."""
        host = self._hosts[self._current]
        if host is self._target:
            return
        self._target[: self._used].copy_(host[: self._used], non_blocking=True)
        self._sent[self._current] = self._device.mark(self._device.begin(), 0.0)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
