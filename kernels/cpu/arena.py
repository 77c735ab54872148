"""Memory of a tape: tensors that take turns in blocks that stay."""

import weakref

import numpy as np
import numpy.typing as npt
import torch

Block = npt.NDArray[np.uint8]


class Arena:
    """Gives out tensors. The block of one that nobody holds any more, nor a view of it, serves the next that fits."""

    def __init__(self) -> None:
        self._free: list[Block] = []
        self.num_bytes = 0
        """Memory of all blocks."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor on the CPU."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        if not num_bytes:
            return torch.empty(shape, dtype=dtype)
        fitting = [number for number, block in enumerate(self._free) if block.nbytes >= num_bytes]
        if fitting:
            block = self._free.pop(min(fitting, key=lambda number: self._free[number].nbytes))
        else:
            block = torch.empty(num_bytes, dtype=torch.uint8).numpy()  # torch's memory begins where vectors may
            self.num_bytes += num_bytes
        lease = block[:num_bytes]  # which the tensor and its views keep
        weakref.finalize(lease, self._free.append, block)
        return torch.from_numpy(lease).view(dtype).view(shape)
