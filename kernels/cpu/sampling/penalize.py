"""Penalties and masks of allowed tokens on CPUs: a native call each."""

import torch

from quire.kernels.cpu.native import native


def penalize(
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    num_tokens: torch.Tensor,
    num_prompt: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> None:
    """See `quire.kernels.sampling.penalize.penalize_reference`."""
    native().quire_penalize(
        logits.data_ptr(),
        logits.stride(0),
        logits.shape[1],
        rows.data_ptr(),
        rows.shape[0],
        tokens.data_ptr(),
        tokens.stride(0),
        tokens.shape[1],
        slots.data_ptr(),
        num_tokens.data_ptr(),
        num_prompt.data_ptr(),
        repetition.data_ptr(),
        presence.data_ptr(),
        frequency.data_ptr(),
        torch.get_num_threads(),
    )


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, bitmask: torch.Tensor) -> None:
    """See `quire.kernels.sampling.penalize.mask_tokens_reference`."""
    native().quire_mask_tokens(
        logits.data_ptr(),
        logits.stride(0),
        logits.shape[1],
        rows.data_ptr(),
        rows.shape[0],
        bitmask.data_ptr(),
        bitmask.shape[1],
        torch.get_num_threads(),
    )
