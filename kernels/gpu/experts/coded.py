"""The experts of a layer whose matrices are quantized, on a GPU: two products over the pairs, the gate between them.

Launches hang on the number of tokens alone, never on where they go: a CUDA graph may record them. Matrices lie each by
itself; a table on the device has their addresses, which is made once, before any graph.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
import triton

from quire.kernels.experts.coded import CodedMatrices, Kind
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.gpu.experts.coded_f8 import f8_of_pairs
from quire.kernels.gpu.experts.coded_f8_blocks import f8_blocks_of_pairs
from quire.kernels.gpu.experts.coded_int8 import int8_of_pairs
from quire.kernels.gpu.experts.coded_words import group_words_of_pairs
from quire.kernels.gpu.experts.products import sum_experts_kernel
from quire.kernels.gpu.experts.sent import Sent, sent
from quire.kernels.gpu.experts.tiles import SUM_BLOCK

Product = Callable[[torch.Tensor, CodedMatrices, Sent, int, bool, ExpertGate | None], torch.Tensor]
"""(x [R, inputs], matrices, where tokens go, pairs of a row of x, by pair, gate) -> [N, outputs].

The row of place p is x[pairs[p] // (pairs of a row)], and the result stands at p; or by pair the row is x[p], and the
result stands at pairs[p]. What no pair of these experts has is left as it is. With a gate, x is [R, 2 * inputs] and
what is multiplied is what the gate makes of its rows, in a launch of its own or in the one that rounds them.
"""
PRODUCTS: Final[Mapping[Kind, Product]] = {
    "group_words": group_words_of_pairs,
    "f8": f8_of_pairs,
    "f8_blocks": f8_blocks_of_pairs,
    "int8": int8_of_pairs,
}


def coded_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedMatrices,
    down: CodedMatrices,
    kind: ExpertGate,
    first: int,
) -> torch.Tensor:
    """See `quire.kernels.experts.coded`."""
    (num_tokens, hidden), k, count = x.shape, ids.shape[1], len(gate_up.each)
    out = torch.empty_like(x)
    if not out.numel():
        return out
    where = sent(ids, first, count)
    opened = PRODUCTS[gate_up.kind](x, gate_up, where, k, False, None)
    results = PRODUCTS[down.kind](opened, down, where, 1, True, kind)
    columns = min(SUM_BLOCK, triton.next_power_of_2(hidden))
    sum_experts_kernel[(num_tokens, triton.cdiv(hidden, columns))](
        results, ids, weights, out, hidden, first, EXPERTS=count, K=k, BLOCK=columns, num_warps=4
    )
    return out
