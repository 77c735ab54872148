"""Weights of tokens' experts beside the scores, for CPUs: native calls, which a tape can note."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def scale_weights(weights: torch.Tensor, ids: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """See kernels/experts/counted.py."""
    out = torch.empty_like(weights)
    native().quire_scale_weights(
        dtype_code("factors", factors),
        weights.data_ptr(),
        ids.data_ptr(),
        factors.data_ptr(),
        out.data_ptr(),
        *weights.shape,
    )
    return out


def count_inputs(x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/experts/counted.py."""
    out, counted = torch.empty_like(x), torch.empty_like(weights)
    native().quire_count_inputs(
        dtype_code("x", x),
        x.data_ptr(),
        weights.data_ptr(),
        out.data_ptr(),
        counted.data_ptr(),
        *x.shape,
        torch.get_num_threads(),
    )
    return out, counted
