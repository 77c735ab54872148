"""Reading rows of logits on the CPU: the likeliest in one pass, ranks by a count for each token that is asked for."""

import torch

from quire.kernels.cpu.native import dtype_code, native


def score(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.sampling.score.score_reference`."""
    num_rows, vocab = logits.shape
    logprobs = torch.empty(token_ids.shape, dtype=torch.float32)
    ranks = torch.empty(token_ids.shape, dtype=torch.int64)
    native().quire_score(
        dtype_code("logits", logits),
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        vocab,
        token_ids.data_ptr(),
        token_ids.shape[1],
        logprobs.data_ptr(),
        ranks.data_ptr(),
        torch.get_num_threads(),
    )
    return logprobs, ranks


def best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See `quire.kernels.sampling.score.best_reference`."""
    num_rows, width = logits.shape
    values = torch.empty(num_rows, dtype=torch.float32)
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    native().quire_best(
        dtype_code("logits", logits),
        logits.data_ptr(),
        logits.stride(0),
        num_rows,
        width,
        values.data_ptr(),
        token_ids.data_ptr(),
        torch.get_num_threads(),
    )
    return values, token_ids
