"""The experts of a layer: for each token the gated feed-forward blocks of those it was sent to, and their weighted sum.

Shape legend: T tokens, k experts of each, E experts that lie here, H hidden size, I inner size of an expert.
"""

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.experts.pack import is_blocked, unpack
from quire.kernels.linear.activation import Gate, check_gate, gated_activation_reference
from quire.kernels.linear.pack import BLOCK, PAIR


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
    [E, H, I], of x's dtype, or both as `pack_experts` made them. Here lie the experts first..first + E - 1: others
    add nothing, and a token without any gets zeros. Both products and the gate are rounded to x's dtype, the sum goes
    from j = 0 on in float32.
    """
    plain_up, plain_down = unpack(gate_up), unpack(down)
    results = x.new_zeros((*ids.shape, x.shape[1]))
    for expert in range(len(plain_up)):
        token, place = (ids == first + expert).nonzero(as_tuple=True)
        inner = gated_activation_reference(torch_linear(x[token], plain_up[expert]), kind)
        results[token, place] = torch_linear(inner, plain_down[expert])
    here = (ids >= first) & (ids < first + len(plain_up))
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
    experts, wide = gate_up.shape[0], gate_up.shape[1] * (BLOCK if is_blocked(gate_up) else 1)
    check_tensor("gate_up", gate_up, _shape_of(gate_up.dim(), experts, wide, hidden), (x.dtype,), x.device)
    check_tensor("down", down, _shape_of(gate_up.dim(), experts, hidden, wide // 2), (x.dtype,), x.device)
    check_contiguous(x=x, ids=ids, weights=weights, gate_up=gate_up, down=down)
    check_gate(kind, wide)


def _shape_of(dims: int, experts: int, outputs: int, inputs: int) -> tuple[int | None, ...]:
    """Shape of the experts' matrices in the form that has so many dimensions."""
    if dims == 4:
        return (experts, outputs // BLOCK, inputs, BLOCK)
    return (experts, outputs // BLOCK, inputs // PAIR, BLOCK, PAIR) if dims == 5 else (experts, outputs, inputs)


experts = Operation(
    experts_reference,
    _check,
    {"cuda": "quire.kernels.gpu.experts.experts:experts"},
)
