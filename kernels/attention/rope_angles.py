"""Cosines and sines of the rotary positions of a step, once for all layers that turn alike."""

import torch

from quire.kernels.checks import check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def rope_angles_reference(
    positions: torch.Tensor, frequencies: torch.Tensor, pair_axes: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cos and sin of position * frequency, by `scale` -> float32 [T, half] each.

    positions int64 [P, T], a row for each axis; frequencies float32 [half], radians per position; pair_axes int64
    [half]: the axis by which each pair turns, None where that is the first.
    """
    of_pairs = positions[:1].T if pair_axes is None else positions.T.index_select(1, pair_axes)
    angles = of_pairs.float() * frequencies
    return angles.cos() * scale, angles.sin() * scale


def _check(positions: torch.Tensor, frequencies: torch.Tensor, pair_axes: torch.Tensor | None, scale: float) -> None:
    check_tensor("positions", positions, (None, None), (torch.int64,), positions.device)
    if positions.shape[1] > 1 and positions.stride(1) != 1:
        raise ValueError(f"positions: each axis must be contiguous, got strides {list(positions.stride())}")
    check_tensor("frequencies", frequencies, (None,), (torch.float32,), positions.device)
    check_contiguous(frequencies=frequencies)
    if pair_axes is not None:
        check_tensor("pair_axes", pair_axes, tuple(frequencies.shape), (torch.int64,), positions.device)
        check_contiguous(pair_axes=pair_axes)


rope_angles = Operation(rope_angles_reference, _check, {"cpu": "quire.kernels.cpu.rope_angles:rope_angles"})
