"""The experts of a layer: for each token the gated feed-forward blocks of those it was sent to, and their weighted sum.

Shape legend: T tokens, k experts of each, E experts that lie here, H hidden size, I inner size of an expert.
"""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.experts.pack import is_blocked, unpack
from quire.kernels.linear.activation import Gate, gated_activation_reference, quick_gelu
from quire.kernels.linear.pack import BLOCK, PAIR

ExpertGate = Literal[Gate, "swigluoai"]
"""Gates of experts. `swigluoai` is that of gpt-oss: both halves are held within a limit, and up counts from -1 on."""
LIMIT = 7.0
"""The most of a `swigluoai` gate, and of its up half to either side."""


def gate_experts(x: torch.Tensor, kind: ExpertGate) -> torch.Tensor:
    """`kind(gate) * up` of the two halves of the last dimension: x [T, 2 * D] -> [T, D]; see `ExpertGate`.

    `swigluoai`: `quick_gelu(min(gate, LIMIT)) * (clamp(up, -LIMIT, LIMIT) + 1)`, in float32 at least, rounded once.
    """
    if kind != "swigluoai":
        return gated_activation_reference(x, kind)
    gate, up = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
    return (quick_gelu(gate.clamp(max=LIMIT)) * (up.clamp(-LIMIT, LIMIT) + 1)).to(x.dtype)


def experts_reference(
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
    """`sum_j weights[:, j] * (down[e_j] @ kind(gate, up) + down_bias[e_j])`, both of `gate_up[e_j] @ x + its bias`.

    x [T, H], ids int32 [T, k], weights float32 [T, k]; gate_up [E, 2 * I, H], gate rows before up rows, and down
    [E, H, I], or both as `pack_experts` made them, biases [E, 2 * I] and [E, H], of x's dtype; the result is [T, H].
    Here lie the experts first..first + E - 1: others add nothing, and a token without any gets zeros. Both products,
    with their biases, and the gate are rounded to x's dtype, the sum goes from j = 0 on in float32.
    """
    gate_up, down = unpack(gate_up), unpack(down)

    def block(number: int, tokens: torch.Tensor) -> torch.Tensor:
        expert = number - first
        biases = (None if bias is None else bias[expert] for bias in (gate_up_bias, down_bias))
        inner = gate_experts(torch_linear(tokens, gate_up[expert], next(biases)), kind)
        return torch_linear(inner, down[expert], next(biases))

    return sum_of_experts(x, ids, weights, range(first, first + len(gate_up)), block)


def sum_of_experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    own: range,
    block: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """`sum_j weights[:, j] * block(e_j, x)`, from j = 0 on in float32, of the experts that are here, `own`.

    x [T, H], ids int32 [T, k], weights float32 [T, k] -> [T, H]. `block`: the number of an expert that is here, and the
    tokens that are sent to it [t, H] -> [t, H].
    """
    results = x.new_zeros((*ids.shape, x.shape[1]))
    here = (ids >= own.start) & (ids < own.stop)
    for expert in torch.unique(ids[here]).tolist():
        token, place = (ids == expert).nonzero(as_tuple=True)
        results[token, place] = block(expert, x[token])
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.new_zeros(x.shape, dtype=wide)
    for j in range(ids.shape[1]):
        share = weights[:, j, None] * results[:, j].to(wide)
        total = torch.where(here[:, j, None], total + share, total)
    return total.to(x.dtype)


def check_biases(
    gate_up_bias: torch.Tensor | None, down_bias: torch.Tensor | None, sizes: tuple[int, int, int], x: torch.Tensor
) -> None:
    """Raise ValueError unless each is None or of x's dtype and [E, 2 * I], [E, H]; sizes: (E, 2 * I, H)."""
    for name, bias, size in (("gate_up_bias", gate_up_bias, sizes[1]), ("down_bias", down_bias, sizes[2])):
        if bias is not None:
            check_tensor(name, bias, (sizes[0], size), (x.dtype,), x.device)
            check_contiguous(**{name: bias})


def check_kind(kind: ExpertGate, wide: int) -> None:
    """Raise ValueError unless experts can end so many outputs in this gate."""
    if kind not in get_args(ExpertGate):
        raise ValueError(f"kind: expected one of {', '.join(get_args(ExpertGate))}, got {kind!r}")
    if wide % 2:
        raise ValueError(f"gate_up: holds gate rows and up rows, so an even number of outputs, got {wide}")


def _check(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kind: ExpertGate,
    first: int,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    num_tokens, hidden = x.shape
    check_tensor("ids", ids, (num_tokens, None), (torch.int32,), x.device)
    check_tensor("weights", weights, tuple(ids.shape), (torch.float32,), x.device)
    num_experts, wide = gate_up.shape[0], gate_up.shape[1] * (2 * BLOCK if is_blocked(gate_up) else 1)
    check_tensor("gate_up", gate_up, _shape(gate_up.dim(), num_experts, wide, hidden), (x.dtype,), x.device)
    check_tensor("down", down, _shape(gate_up.dim(), num_experts, hidden, wide // 2), (x.dtype,), x.device)
    check_contiguous(x=x, ids=ids, weights=weights, gate_up=gate_up, down=down)
    check_biases(gate_up_bias, down_bias, (num_experts, wide, hidden), x)
    check_kind(kind, wide)


def _shape(dims: int, experts: int, outputs: int, inputs: int) -> tuple[int, ...]:
    """Shape of the experts' matrices in the form that has so many dimensions."""
    if dims == 3:
        return (experts, outputs, inputs)
    pair = (PAIR,) if dims == 6 else ()
    return (experts, outputs // (2 * BLOCK), inputs // (PAIR if pair else 1), 2, BLOCK, *pair)


experts = Operation(
    experts_reference,
    _check,
    {"cuda": "quire.kernels.gpu.experts.experts:experts", "cpu": "quire.kernels.cpu.experts.experts:experts"},
)
