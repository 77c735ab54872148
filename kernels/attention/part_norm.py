"""RMS norm of queries and of keys, each over all heads of all ranks: the squares of a rank's part, and the norm by
those of all. Shape legend: T tokens, D columns of a rank's product, of which Q are queries' and K behind them keys'."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def part_squares_reference(qkv: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """The mean squares of the queries and of the keys of each row: qkv [T, D] -> float32 [T, 2]."""
    parts = qkv[:, : queries + keys].float().square().split_with_sizes((queries, keys), dim=1)
    return torch.cat([part.mean(-1, keepdim=True) for part in parts], dim=1)


def part_norm_reference(
    qkv: torch.Tensor,
    squares: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    eps: float,
    num_ranks: int,
) -> torch.Tensor:
    """qkv [T, D] with queries and keys normalised, each times its weight, [Q] and [K]; values as they are.

    squares float32 [T, 2]: the sum over the ranks, which hold equally many heads, of `part_squares`.
    """
    sizes = (query_weight.shape[0], key_weight.shape[0])
    parts = qkv.split_with_sizes((*sizes, qkv.shape[1] - sum(sizes)), dim=1)
    factors = torch.rsqrt(squares / num_ranks + eps)
    queries, keys = (
        weight * (part.float() * factors[:, number, None]).to(qkv.dtype)
        for number, (part, weight) in enumerate(zip(parts, (query_weight, key_weight), strict=False))
    )
    return torch.cat((queries, keys, parts[2]), dim=1)


def _check_squares(qkv: torch.Tensor, queries: int, keys: int) -> None:
    check_tensor("qkv", qkv, (None, None), FLOATS, qkv.device)
    check_contiguous(qkv=qkv)
    if queries < 1 or keys < 1 or queries + keys > qkv.shape[1]:
        raise ValueError(f"queries: {queries} and {keys} keys do not lie in {qkv.shape[1]} columns")


def _check_norm(
    qkv: torch.Tensor,
    squares: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    eps: float,
    num_ranks: int,
) -> None:
    for name, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        check_tensor(name, weight, (None,), (qkv.dtype,), qkv.device)
    _check_squares(qkv, query_weight.shape[0], key_weight.shape[0])
    check_tensor("squares", squares, (qkv.shape[0], 2), (torch.float32,), qkv.device)
    check_contiguous(squares=squares, query_weight=query_weight, key_weight=key_weight)


# a GPU records torch's own operations in its graphs
part_squares = Operation(part_squares_reference, _check_squares, {"cpu": "quire.kernels.cpu.part_norm:part_squares"})
part_norm = Operation(part_norm_reference, _check_norm, {"cpu": "quire.kernels.cpu.part_norm:part_norm"})
