"""Truncation on the CPU: one native call, a row to a thread."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def top_k_top_p(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """See `quire.kernels.sampling.top_k_top_p.top_k_top_p_reference`."""
    num_rows, vocab = logits.shape
    floor = torch.empty(num_rows, dtype=torch.float32)
    native().quire_top_k_top_p(
        dtype_code("logits", logits),
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab,
        temperature.data_ptr(),
        top_k.data_ptr(),
        top_p.data_ptr(),
        min_p.data_ptr(),
        floor.data_ptr(),
        torch.get_num_threads(),
    )
    return floor
