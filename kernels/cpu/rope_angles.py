"""Cosines and sines of the rotary positions for CPUs: one pass, where torch would take eight."""

import torch

from quire.kernels.cpu.native import address, native


def rope_angles(
    positions: torch.Tensor, frequencies: torch.Tensor, pair_axes: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/attention/rope_angles.py."""
    num_tokens, half = positions.shape[1], frequencies.shape[0]
    cos, sin = frequencies.new_empty((num_tokens, half)), frequencies.new_empty((num_tokens, half))
    native().quire_rope_angles(
        positions.data_ptr(),
        positions.stride(0),
        frequencies.data_ptr(),
        address(pair_axes),
        scale,
        cos.data_ptr(),
        sin.data_ptr(),
        num_tokens,
        half,
        torch.get_num_threads(),
    )
    return cos, sin
