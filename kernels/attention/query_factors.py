"""Queries that count more with their position (Nakanishi, 2025), by whole lengths of the context they were trained for.

Shape legend: T tokens, K key-value heads, G query heads of each, D head dim.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def query_factors_reference(positions: torch.Tensor, ahead: int, length: int, beta: float) -> torch.Tensor:
    """`1 + beta * log(1 + (position + ahead) // length)`: int64 [T] -> float32 [T]."""
    return 1 + beta * torch.log(1 + torch.floor((positions + ahead) / length))


def scale_queries_reference(query: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Each token's queries times its factor, which is rounded to their dtype first: [K, T, G, D], float32 [T]."""
    return query * factors.to(query.dtype)[:, None, None]


def _check_factors(positions: torch.Tensor, ahead: int, length: int, beta: float) -> None:
    check_tensor("positions", positions, (None,), (torch.int64,), positions.device)
    check_contiguous(positions=positions)
    if length < 1:
        raise ValueError(f"length: must be positive, got {length}")


def _check_queries(query: torch.Tensor, factors: torch.Tensor) -> None:
    check_tensor("query", query, (None, None, None, None), FLOATS, query.device)
    check_tensor("factors", factors, (query.shape[1],), (torch.float32,), query.device)
    check_contiguous(query=query, factors=factors)


# a GPU records torch's own operations in its graphs
query_factors = Operation(
    query_factors_reference, _check_factors, {"cpu": "quire.kernels.cpu.query_factors:query_factors"}
)
scale_queries = Operation(
    scale_queries_reference, _check_queries, {"cpu": "quire.kernels.cpu.query_factors:scale_queries"}
)
