"""The experts of a layer on a GPU: few pairs in two launches of vectors, more sorted by expert in tiles of matrices.

What is launched hangs on the number of tokens alone, never on where they go: a CUDA graph may record it.
"""

import torch
import triton

from quire.kernels.experts.experts import ExpertGate
from quire.kernels.gpu.experts.few import few_inner_kernel, few_outer_kernel
from quire.kernels.gpu.experts.products import experts_inner_kernel, experts_outer_kernel, sum_experts_kernel
from quire.kernels.gpu.experts.sort import sort_by_expert
from quire.kernels.gpu.experts.tiles import SUM_BLOCK, are_few, few_tiles, most_tiles, product_tiles
from quire.kernels.gpu.tile_table import Tiles


def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kind: ExpertGate,
    first: int,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `quire.kernels.experts.experts`."""
    num_pairs, count = ids.numel(), gate_up.shape[0]
    if are_few(num_pairs, count) or not x.numel():
        return few_experts(x, ids, weights, gate_up, down, kind, first, gate_up_bias, down_bias)
    inner, outer = (product_tiles(num_pairs, count, x.dtype, gated=gated) for gated in (True, False))
    return sorted_experts(x, ids, weights, gate_up, down, kind, first, inner, outer, gate_up_bias, down_bias)


def few_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kind: ExpertGate,
    first: int,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`experts`, each pair by itself."""
    (num_tokens, hidden), k = x.shape, ids.shape[1]
    count, inner = down.shape[0], down.shape[2]
    opened, out = x.new_empty((ids.numel(), inner)), torch.empty_like(x)
    if not out.numel():
        return out
    tiles = few_tiles(num_tokens, inner, x.dtype, gated=True)
    few_inner_kernel[(triton.cdiv(inner, tiles["block_o"]), num_tokens * k)](
        x,
        ids,
        weights,
        gate_up,
        gate_up_bias,
        opened,
        hidden,
        inner,
        first,
        EXPERTS=count,
        K=k,
        KIND=kind,
        **_options(tiles),
    )
    tiles = few_tiles(num_tokens, hidden, x.dtype, gated=False)
    few_outer_kernel[(triton.cdiv(hidden, tiles["block_o"]), num_tokens)](
        opened,
        ids,
        weights,
        down,
        down_bias,
        out,
        inner,
        hidden,
        first,
        EXPERTS=count,
        K=k,
        K_BLOCK=triton.next_power_of_2(k),
        **_options(tiles),
    )
    return out


def sorted_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kind: ExpertGate,
    first: int,
    inner_tiles: Tiles,
    outer_tiles: Tiles,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`experts` by given tiles of the two products."""
    (num_tokens, hidden), k = x.shape, ids.shape[1]
    (count, _, inner), num_pairs = down.shape, ids.numel()
    pairs, starts = sort_by_expert(ids, first, count)
    opened, results = x.new_empty((num_pairs, inner)), x.new_empty((num_pairs, hidden))
    out, block = torch.empty_like(x), triton.next_power_of_2(count)
    experts_inner_kernel[_grid(inner, num_pairs, count, inner_tiles)](
        x,
        pairs,
        starts,
        gate_up,
        gate_up_bias,
        opened,
        hidden,
        inner,
        K=k,
        EXPERTS=count,
        EXPERTS_BLOCK=block,
        KIND=kind,
        ROWS=inner_tiles["rows"],
        **_options(inner_tiles),
    )
    experts_outer_kernel[_grid(hidden, num_pairs, count, outer_tiles)](
        opened,
        pairs,
        starts,
        down,
        down_bias,
        results,
        inner,
        hidden,
        EXPERTS=count,
        EXPERTS_BLOCK=block,
        ROWS=outer_tiles["rows"],
        **_options(outer_tiles),
    )
    columns = min(SUM_BLOCK, triton.next_power_of_2(hidden))
    sum_experts_kernel[(num_tokens, triton.cdiv(hidden, columns))](
        results, ids, weights, out, hidden, first, EXPERTS=count, K=k, BLOCK=columns, num_warps=4
    )
    return out


def _grid(outputs: int, num_pairs: int, experts: int, tiles: Tiles) -> tuple[int, int]:
    return triton.cdiv(outputs, tiles["block_o"]), most_tiles(num_pairs, experts, tiles["rows"])


def _options(tiles: Tiles) -> dict[str, int]:
    names = {"block_o": "BLOCK_O", "block_i": "BLOCK_I"}
    return {names.get(name, name): size for name, size in tiles.items() if name != "rows"}
