"""Copy whole blocks of one layer's cache: copy-on-write when sequences that share a block part ways."""

import torch

from quire.kernels.checks import FLOATS, check_tensor
from quire.kernels.dispatch import Operation


def copy_blocks_reference(
    keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor
) -> None:
    """Block `sources[i]` overwrites block `destinations[i]`, in place; all are read before any is written.

    keys, values [num_blocks, block_size, K, D]; sources, destinations int64 [n], no destination twice.
    """
    keys.index_copy_(0, destinations, keys.index_select(0, sources))
    values.index_copy_(0, destinations, values.index_select(0, sources))


def _check(keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    check_tensor("keys", keys, (None, None, None, None), FLOATS, keys.device)
    check_tensor("values", values, tuple(keys.shape), (keys.dtype,), keys.device)
    check_tensor("sources", sources, (None,), (torch.int64,), keys.device)
    check_tensor("destinations", destinations, (sources.shape[0],), (torch.int64,), keys.device)


copy_blocks = Operation(copy_blocks_reference, _check)
