"""The experts of a layer for CPUs: packed weights in float32 and bfloat16, all experts' products in one loop; float16,
and what does not divide into blocks, an expert after the other through torch."""

import torch

from quire.kernels.cpu.linear.linear import ROW_BYTES, pack
from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.experts.experts import ExpertGate, experts_reference
from quire.kernels.experts.pack import is_blocked
from quire.kernels.linear.pack import BLOCK, PAIR

GATES: dict[ExpertGate, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "swigluoai": 3}
"""The library's numbers of the gates; see gate.hpp."""
_WHOLE = {torch.float32: BLOCK, torch.bfloat16: PAIR * BLOCK}
"""Inner and hidden sizes that divide into blocks are multiples of these."""


def pack_experts(gate_up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/experts/pack.py."""
    _, hidden, inner = down.shape
    whole = _WHOLE.get(gate_up.dtype)
    if whole is None or hidden % whole or inner % whole:
        return gate_up, down
    return _blocked(gate_up), _blocked(down)


def _blocked(weight: torch.Tensor) -> torch.Tensor:
    """Each expert's matrix packed, in the memory of the plain ones: one more is all that there is at a time."""
    experts, outputs, inputs = weight.shape
    pair = () if weight.dtype is torch.float32 else (PAIR,)
    packed = weight.view(experts, outputs // BLOCK, inputs // (PAIR if pair else 1), BLOCK, *pair)
    for expert in range(experts):
        packed[expert] = pack(weight[expert])
    return packed


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
    inner = gate_up.shape[1] * BLOCK // 2
    up, back = (gate_up, None, gate_up_bias), (down, None, down_bias)
    return multiply(x, ids, weights, up, back, gate_up.shape[0], inner, kind, first)


Matrices = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""Blocked weights of all experts, the scales of 8-bit ones and the biases, for each output."""


def multiply(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: Matrices,
    down: Matrices,
    num_experts: int,
    inner: int,
    kind: ExpertGate,
    first: int,
) -> torch.Tensor:
    """The sum over experts first..first + num_experts - 1 of this inner size, whatever form their weights have."""
    (num_tokens, hidden), k = x.shape, ids.shape[1]
    dtype, threads, library = dtype_code("x", x), torch.get_num_threads(), native()
    pairs, places = torch.empty_like(ids), torch.empty_like(ids)
    starts = ids.new_empty(num_experts + 1)
    library.quire_sort_by_expert(
        ids.data_ptr(), num_tokens, k, first, num_experts, pairs.data_ptr(), starts.data_ptr(), places.data_ptr()
    )
    opened, results = (x.new_empty((num_tokens * k, size)) for size in (inner, hidden))
    out = torch.empty_like(x)
    scratch = torch.empty(num_tokens * k * (4 * max(hidden, inner) + ROW_BYTES), dtype=torch.uint8)
    library.quire_experts_inner(
        dtype,
        x.data_ptr(),
        pairs.data_ptr(),
        starts.data_ptr(),
        num_tokens,
        num_experts,
        k,
        hidden,
        inner,
        *map(address, gate_up),
        GATES[kind],
        opened.data_ptr(),
        scratch.data_ptr(),
        threads,
    )
    library.quire_experts_outer(
        dtype,
        opened.data_ptr(),
        pairs.data_ptr(),
        starts.data_ptr(),
        places.data_ptr(),
        weights.data_ptr(),
        num_tokens,
        num_experts,
        k,
        hidden,
        inner,
        *map(address, down),
        results.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        threads,
    )
    return out
