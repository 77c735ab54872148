"""Linear layers on 8-bit integers: weights are quantized once for each output, activations in each call for each row.

Rows know nothing of each other: a token's result does not depend on what else is in the batch. The sums are exact.
"""

import torch

from quire.kernels.checks import FLOATS, check_bias, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.activation import Gate, check_gate, check_gated, gated_activation_reference, halves
from quire.kernels.linear.norm import check_residual_norm, residual_norm_reference

BLOCK = 16
"""Outputs that lie together in a packed weight."""
GROUP = 4
"""Inputs that lie together: what one lane of a vector multiplies at once."""
ZERO_POINT = 128
"""Added to stored weights, because the instruction multiplies unsigned by signed bytes."""
LARGEST = 127
"""The largest integer; the least is its opposite, or one less in a checkpoint."""
MOST_INPUTS = (2**31 - 1) // (255 * LARGEST)
"""A sum of more products could leave 32 bits."""
LEAST_MAGNITUDE = 1e-30
"""Rows of smaller numbers are quantized to zeros."""
_PIECE = 4096
"""Rows of a weight packed at once: the steps in between take several times their memory."""


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [N, I] -> integers -127..127 (int8 [N, I]) and scales (float32 [N]): x is about integers * scale, row by row.

    The scale is the largest magnitude over 127, halves round to even. A row with a NaN or an infinity has scale NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(1)
    # by a tensor: a GPU multiplies by one over a number instead, which rounds twice
    scale = largest.clamp(min=LEAST_MAGNITUDE) / torch.full_like(largest, LARGEST)
    integers = torch.where(largest.isfinite()[:, None], (wide / scale[:, None]).round(), 0.0)
    return integers.to(torch.int8), torch.where(largest.isfinite(), scale, torch.nan)


def pack_int8_reference(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [O, I] -> (packed uint8 [ceil(O / 16), ceil(I / 4), 16, 4], scale float32 [O])."""
    outputs, inputs = weight.shape
    packed = _empty(outputs, inputs, weight.device)
    scale = torch.empty(outputs, dtype=torch.float32, device=weight.device)
    for start in range(0, outputs, _PIECE):
        integers, scale[start : start + _PIECE] = quantize(weight[start : start + _PIECE])
        _lay(packed, start, integers)
    return packed, scale


def pack_integers_reference(integers: torch.Tensor) -> torch.Tensor:
    """int8 [O, I] -> packed uint8 [ceil(O / 16), ceil(I / 4), 16, 4]."""
    packed = _empty(integers.shape[0], integers.shape[1], integers.device)
    for start in range(0, integers.shape[0], _PIECE):
        _lay(packed, start, integers[start : start + _PIECE])
    return packed


def _empty(outputs: int, inputs: int, device: torch.device) -> torch.Tensor:
    """Element (b, g, o, i) is the integer of output 16 b + o and input 4 g + i, plus 128; what lies beyond is 128."""
    shape = (-(-outputs // BLOCK), -(-inputs // GROUP), BLOCK, GROUP)
    return torch.full(shape, ZERO_POINT, dtype=torch.uint8, device=device)


def _lay(packed: torch.Tensor, start: int, integers: torch.Tensor) -> None:
    """Put integers int8 [N, I] into `packed` as its outputs from `start` on, a multiple of 16."""
    rows, groups = -(-integers.shape[0] // BLOCK), packed.shape[1]
    padded = integers.new_zeros((rows * BLOCK, groups * GROUP))
    padded[: integers.shape[0], : integers.shape[1]] = integers
    blocks = padded.view(torch.uint8) ^ ZERO_POINT  # flips the sign bit, which is + 128
    packed[start // BLOCK :][:rows] = blocks.view(rows, BLOCK, groups, GROUP).transpose(1, 2)


def _check_pack(weight: torch.Tensor) -> None:
    check_tensor("weight", weight, (None, None), FLOATS, weight.device)
    check_contiguous(weight=weight)


def _check_pack_integers(integers: torch.Tensor) -> None:
    check_tensor("integers", integers, (None, None), (torch.int8,), integers.device)
    check_contiguous(integers=integers)


# GPUs have the integers as they are: int8 [O, I]
pack = Operation(pack_int8_reference, _check_pack, {"cuda": "quire.kernels.gpu.quantized.linear_int8:pack"})
pack_integers = Operation(
    pack_integers_reference, _check_pack_integers, {"cuda": "quire.kernels.gpu.quantized.linear_int8:pack_integers"}
)


def unpack(packed: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """The integers that `pack` stored: int8 [outputs, inputs]."""
    if packed.dim() == 2:
        return packed
    rows = packed.transpose(1, 2).reshape(packed.shape[0] * BLOCK, packed.shape[1] * GROUP)
    return (rows ^ ZERO_POINT).view(torch.int8)[:outputs, :inputs]


def linear_int8_reference(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x @ W.T + bias`, where `weight` and `scale` are `pack(W)`: x [T, I], bias [O] -> [T, O].

    Each row of x is quantized like a row of W; the product of the integers is exact, then scaled in float32.
    """
    integers, row_scale = quantize(x)
    stored = unpack(weight, scale.shape[0], x.shape[1])
    exact = (integers.double() @ stored.double().T).float()  # float64 holds every sum
    out = exact * scale * row_scale[:, None]
    return (out if bias is None else out + bias.float()).to(x.dtype)


def norm_linear_int8_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_int8(rms_norm(total))` and `total = residual + x`, with the gated activation if asked for.

    Like `norm_linear`: x and residual [T, I] -> ([T, O], or with a gate [T, O / 2]; total [T, I]).
    """
    normed, total = residual_norm_reference(x, residual, norm_weight, eps)
    wide = linear_int8_reference(normed, weight, scale, bias)
    return (wide if gate is None else gated_activation_reference(wide, gate)), total


def gated_linear_int8_reference(
    x: torch.Tensor, kind: Gate, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`linear_int8(gated_activation(x, kind))`: x [T, 2 * I] -> [T, O]. What the gate makes is rounded to x's dtype."""
    return linear_int8_reference(gated_activation_reference(x, kind), weight, scale, bias)


def _check(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("scale", scale, (None,), (torch.float32,), x.device)
    outputs, inputs = scale.shape[0], x.shape[1]
    if weight.dim() == 2:
        check_tensor("weight", weight, (outputs, inputs), (torch.int8,), x.device)
    else:
        blocks = (-(-outputs // BLOCK), -(-inputs // GROUP), BLOCK, GROUP)
        check_tensor("weight", weight, blocks, (torch.uint8,), x.device)
    if inputs > MOST_INPUTS:
        raise ValueError(f"x: sums of {inputs} products do not fit 32 bits; at most {MOST_INPUTS} inputs")
    check_contiguous(x=x, weight=weight, scale=scale)
    check_bias(bias, outputs, x)


def _check_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> None:
    _check(x, weight, scale, bias)
    check_residual_norm(x, residual, norm_weight, eps)
    check_gate(gate, scale.shape[0])


def _check_gated(
    x: torch.Tensor, kind: Gate, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
) -> None:
    check_gated(x, kind)
    _check(halves(x), weight, scale, bias)


linear_int8 = Operation(
    linear_int8_reference,
    _check,
    {
        "cpu": "quire.kernels.cpu.linear.linear_int8:linear_int8",
        "cuda": "quire.kernels.gpu.quantized.linear_int8:linear_int8",
    },
)
norm_linear_int8 = Operation(
    norm_linear_int8_reference,
    _check_norm,
    {
        "cpu": "quire.kernels.cpu.linear.linear_int8:norm_linear_int8",
        "cuda": "quire.kernels.gpu.quantized.linear_int8:norm_linear_int8",
    },
)
gated_linear_int8 = Operation(
    gated_linear_int8_reference,
    _check_gated,
    {"cuda": "quire.kernels.gpu.quantized.linear_int8:gated_linear_int8"},
)
