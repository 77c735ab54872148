"""Choosing on the CPU: the draw is one native call, a row to a thread."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def sample(
    logits: torch.Tensor,
    floor: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    output_index: torch.Tensor,
) -> torch.Tensor:
    """See `quire.kernels.sampling.sample.sample_reference`."""
    num_rows, vocab = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    native().quire_sample(
        dtype_code("logits", logits),
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab,
        floor.data_ptr(),
        temperature.data_ptr(),
        seeds.data_ptr(),
        positions.data_ptr(),
        output_index.data_ptr(),
        token_ids.data_ptr(),
        torch.get_num_threads(),
    )
    return token_ids


def append_tokens(tokens: torch.Tensor, known: torch.Tensor, slots: torch.Tensor, token_ids: torch.Tensor) -> None:
    """See `quire.kernels.sampling.append_tokens`. By numpy, which begins sooner than torch."""
    counts, own = known.numpy(), slots.numpy()
    positions = counts[own]
    tokens.numpy()[own, positions] = token_ids.numpy()
    counts[own] = positions + 1
