"""The experts of a layer: for each token the gated feed-forward blocks of those it was sent to, and their weighted sum.

Shape legend: T tokens, k experts of each, E experts that lie here, H hidden size, I inner size of an expert.
"""

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.activation import Gate, check_gate, gated_activation_reference


def experts_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kind: Gate,
    first: int,
) -> torch.Tensor:
    """`sum_j weights[:, j] * down[e_j] @ (kind(gate) * up)`, gate and up of `gate_up[e_j] @ x`: [T, H].

    x [T, H], ids int32 [T, k], weights float32 [T, k]; gate_up [E, 2 * I, H], gate rows before up rows, and down
    [E, H, I], of x's dtype. Here lie the experts first..first + E - 1: others add nothing, and a token without any gets
    zeros. Both products and the gate are rounded to x's dtype, the sum goes from j = 0 on in float32.
    """
    results = x.new_zeros((*ids.shape, x.shape[1]))
    for expert in range(len(gate_up)):
        token, place = (ids == first + expert).nonzero(as_tuple=True)
        inner = gated_activation_reference(torch_linear(x[token], gate_up[expert]), kind)
        results[token, place] = torch_linear(inner, down[expert])
    here = (ids >= first) & (ids < first + len(gate_up))
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.new_zeros(x.shape, dtype=wide)
    for j in range(ids.shape[1]):
        share = weights[:, j, None] * results[:, j].to(wide)
        total = torch.where(here[:, j, None], total + share, total)
    return total.to(x.dtype)


def _check(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kind: Gate,
    first: int,
) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    num_tokens, hidden = x.shape
    check_tensor("ids", ids, (num_tokens, None), (torch.int32,), x.device)
    check_tensor("weights", weights, tuple(ids.shape), (torch.float32,), x.device)
    check_tensor("gate_up", gate_up, (None, None, hidden), (x.dtype,), x.device)
    num_experts, wide, _ = gate_up.shape
    check_tensor("down", down, (num_experts, hidden, wide // 2), (x.dtype,), x.device)
    check_contiguous(x=x, ids=ids, weights=weights, gate_up=gate_up, down=down)
    check_gate(kind, wide)


experts = Operation(
    experts_reference,
    _check,
    {"cuda": "quire.kernels.gpu.experts.experts:experts"},
)
