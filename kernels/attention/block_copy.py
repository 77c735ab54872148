"""Copy whole blocks of one layer's cache: copy-on-write when sequences that share a block part ways."""

import torch

from quire.kernels.checks import CACHES, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def copy_blocks_reference(
    keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor
) -> None:
    """Block `sources[i]` overwrites block `destinations[i]`, in place.

    keys, values [num_blocks, block_size, K, D]; sources, destinations int64 [n], inside the cache. No destination is
    named twice and none is a source, so the order of the copies does not matter; only the caller can see that without
    waiting for the device.
    """
    for cache in (keys, values):
        blocks = cache.view(torch.uint8)  # torch cannot index a tensor of 8-bit floats
        blocks.index_copy_(0, destinations, blocks.index_select(0, sources))


def _check(keys: torch.Tensor, values: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    check_tensor("keys", keys, (None, None, None, None), CACHES, keys.device)
    check_tensor("values", values, tuple(keys.shape), (keys.dtype,), keys.device)
    check_tensor("sources", sources, (None,), (torch.int64,), keys.device)
    check_tensor("destinations", destinations, (sources.shape[0],), (torch.int64,), keys.device)
    check_contiguous(keys=keys, values=values, sources=sources, destinations=destinations)


copy_blocks = Operation(copy_blocks_reference, _check, {"cuda": "quire.kernels.gpu.attention.block_copy:copy_blocks"})
