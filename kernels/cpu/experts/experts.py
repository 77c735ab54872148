"""The experts of a layer for CPUs: packed weights in float32 and bfloat16, all experts' products in one loop; float16,
and what does not divide into blocks, an expert after the other through torch."""

from typing import NamedTuple

import torch

from quire.kernels.cpu.linear.linear import ROW_BYTES
from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.experts.experts import ExpertGate, experts_reference
from quire.kernels.experts.pack import is_blocked
from quire.kernels.linear.pack import BLOCK, PAIR

GATES: dict[ExpertGate, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "swigluoai": 3}
"""The library's numbers of the gates; see gate.hpp."""
_WHOLE = {torch.float32: BLOCK, torch.bfloat16: PAIR * BLOCK}
"""Inner sizes that divide into blocks are multiples of these."""


def pack_experts(gate_up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/experts/pack.py."""
    _, hidden, inner = down.shape
    whole = _WHOLE.get(gate_up.dtype)
    if whole is None or hidden % (2 * BLOCK) or inner % whole:
        return gate_up, down
    return _blocked(gate_up), _blocked(down)


def _blocked(weight: torch.Tensor) -> torch.Tensor:
    """Each expert's matrix packed, in the memory of the plain ones: one more is all that there is at a time."""
    experts, outputs, _ = weight.shape
    lanes = weight.view(torch.int32)
    packed = lanes.view(experts, outputs // (2 * BLOCK), lanes.shape[2], 2, BLOCK)
    for expert in range(experts):
        halves = lanes[expert].view(2, -1, BLOCK, lanes.shape[2])
        packed[expert] = halves.permute(1, 3, 0, 2).contiguous()  # apart: it is written where it is read
    wide = packed.view(weight.dtype)
    return wide if weight.dtype is torch.float32 else wide.view(*packed.shape, PAIR)


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
    """See kernels/experts/experts.py."""
    if not is_blocked(gate_up):
        return experts_reference(x, ids, weights, gate_up, down, kind, first, gate_up_bias, down_bias)
    (num_tokens, hidden), inner = x.shape, gate_up.shape[1] * BLOCK
    dtype, threads, library = dtype_code("x", x), torch.get_num_threads(), native()
    sent = sort_by_expert(ids, first, gate_up.shape[0])
    opened, results = (x.new_empty((ids.numel(), size)) for size in (inner, hidden))
    scratch = torch.empty(ids.numel() * (4 * max(hidden, inner) + ROW_BYTES), dtype=torch.uint8)
    library.quire_experts_inner(
        dtype,
        x.data_ptr(),
        sent.pairs.data_ptr(),
        sent.starts.data_ptr(),
        num_tokens,
        gate_up.shape[0],
        ids.shape[1],
        hidden,
        inner,
        gate_up.data_ptr(),
        address(gate_up_bias),
        GATES[kind],
        opened.data_ptr(),
        scratch.data_ptr(),
        threads,
    )
    library.quire_experts_outer(
        dtype,
        opened.data_ptr(),
        sent.pairs.data_ptr(),
        sent.starts.data_ptr(),
        num_tokens,
        gate_up.shape[0],
        ids.shape[1],
        hidden,
        inner,
        down.data_ptr(),
        address(down_bias),
        results.data_ptr(),
        scratch.data_ptr(),
        threads,
    )
    return weighted_sum(results, sent, weights)


class Sent(NamedTuple):
    """Pairs of a token and one of its k places, expert after expert."""

    pairs: torch.Tensor
    """token * k + place, of those whose expert is here; int32 [T, k]."""
    starts: torch.Tensor
    """Places at which each expert's begin, and the last one's end; int32 [E + 1]."""
    places: torch.Tensor
    """The place of each pair among them, -1 for an expert that is elsewhere; int32 [T, k]."""


def sort_by_expert(ids: torch.Tensor, first: int, num_experts: int) -> Sent:
    """ids int32 [T, k]; here lie the experts first..first + num_experts - 1."""
    sent = Sent(torch.empty_like(ids), ids.new_empty(num_experts + 1), torch.empty_like(ids))
    pairs, starts, places = (one.data_ptr() for one in sent)
    native().quire_sort_by_expert(ids.data_ptr(), *ids.shape, first, num_experts, pairs, starts, places)
    return sent


def weighted_sum(results: torch.Tensor, sent: Sent, weights: torch.Tensor) -> torch.Tensor:
    """results [T * k, H] in the order of the pairs, weights float32 [T, k] -> [T, H]."""
    (num_tokens, k), hidden = weights.shape, results.shape[1]
    out = results.new_empty((num_tokens, hidden))
    native().quire_experts_sum(
        dtype_code("results", results),
        results.data_ptr(),
        sent.places.data_ptr(),
        weights.data_ptr(),
        num_tokens,
        k,
        hidden,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out
