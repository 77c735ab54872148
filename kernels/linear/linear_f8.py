"""Linear layers on weights of 8-bit floats (e4m3: largest 448, no infinity), with a float32 scale for each output.

What becomes of activations is the checkpoint's to say and the same in every step: a token's result does not depend on
what else is in the batch. Products of codes are exact in float32, in which they are summed.
"""

from typing import Literal, get_args

import torch

from quire.kernels.checks import FLOATS, check_bias, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.activation import Gate, check_gate, check_gated, gated_activation_reference, halves
from quire.kernels.linear.norm import check_residual_norm, residual_norm_reference

Activations = Literal["token", "static", "none"]
"""Rounded to e4m3 by a scale of each row, by one scale that was measured beforehand, or left as they are."""

F8 = torch.float8_e4m3fn
BLOCK = 16
"""Outputs that lie together in a packed weight."""
GROUP = 4
"""Inputs come in whole groups, and behind them as many bytes as a group's say which outputs hold a NaN."""
LARGEST = 448.0
"""The largest number of e4m3."""
LEAST_MAGNITUDE = 1e-30
"""Rows of smaller numbers are rounded to zeros."""


def quantize(x: torch.Tensor, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x [N, I] -> codes (e4m3 [N, I]) and scales (float32 [N]): x is about codes * scale, row by row.

    With `scale` (float32 [1]) that is the scale of all rows, and what lies beyond it saturates; else a row's scale is
    its largest magnitude over 448. Halves round to even. A row with a NaN or an infinity has scale NaN.
    """
    wide = x.float()
    largest = wide.abs().amax(1)
    # by a tensor: a GPU multiplies by one over a number instead, which rounds twice
    own = largest.clamp(min=LEAST_MAGNITUDE) / torch.full_like(largest, LARGEST)
    scales = own if scale is None else scale.expand(x.shape[0])
    codes = (wide / scales[:, None]).clamp(-LARGEST, LARGEST).to(F8)
    return codes, torch.where(largest.isfinite(), scales, torch.nan)


def pack_f8_reference(weight: torch.Tensor) -> torch.Tensor:
    """weight e4m3 [O, I] -> packed e4m3 [ceil(O / 16), 4 ceil(I / 4) + 4, 16].

    Element (b, i, o) is the code of output 16 b + o and input i; what lies beyond is 0. The last four rows of a block
    are 16 float32 in place of codes: NaN for an output of which a code is NaN, else 0. Sums begin with them, so that
    products need not look for NaN.
    """
    outputs, inputs = weight.shape
    blocks, groups, whole = -(-outputs // BLOCK), -(-inputs // GROUP), outputs // BLOCK
    codes = weight.view(torch.uint8)
    packed = torch.zeros((blocks, (groups + 1) * GROUP, BLOCK), dtype=torch.uint8, device=weight.device)
    packed[:whole, :inputs] = codes[: whole * BLOCK].view(whole, BLOCK, inputs).transpose(1, 2)
    if whole < blocks:
        packed[whole, :inputs, : outputs % BLOCK] = codes[whole * BLOCK :].T
    starts = packed[:, -GROUP:].view(blocks, -1).view(torch.float32)
    for block, start in zip(packed[:, :-GROUP], starts, strict=True):  # one by one: no copy of the weight
        start[(block & 0x7F).eq(0x7F).any(0)] = torch.nan
    return packed.view(F8)


def _check_pack(weight: torch.Tensor) -> None:
    check_tensor("weight", weight, (None, None), (F8,), weight.device)
    check_contiguous(weight=weight)


pack = Operation(
    pack_f8_reference,
    _check_pack,
    {
        "cpu": "quire.kernels.cpu.linear.linear_f8:pack",
        "cuda": "quire.kernels.gpu.quantized.linear_f8:pack",  # of two dimensions: the codes as they are
    },
)


def unpack(packed: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
    """The codes that `pack` stored: e4m3 [outputs, inputs]."""
    if packed.dim() == 2:
        return packed
    rows = packed.view(torch.uint8)[:, :inputs].transpose(1, 2).reshape(packed.shape[0] * BLOCK, inputs)
    return rows[:outputs].view(F8)


def linear_f8_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """`x @ W.T + bias`, W = codes * scale, where `weight` is `pack(codes)`: x [T, I], scale [O], bias [O] -> [T, O].

    activations "token" and "static" round each row of x to codes (`quantize`), "static" by `input_scale` (float32 [1],
    else None); with "none" the product is that of x itself. Its sums are scaled in float32.
    """
    wide = unpack(weight, scale.shape[0], x.shape[1]).float()
    if activations == "none":
        out = (x.float() @ wide.T) * scale
    else:
        codes, row_scale = quantize(x, input_scale)
        out = (codes.float() @ wide.T) * scale * row_scale[:, None]
    return (out if bias is None else out + bias.float()).to(x.dtype)


def norm_linear_f8_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_f8(rms_norm(total))` and `total = residual + x`, with the gated activation if asked for.

    Like `norm_linear`: x and residual [T, I] -> ([T, O], or with a gate [T, O / 2]; total [T, I]).
    """
    normed, total = residual_norm_reference(x, residual, norm_weight, eps)
    wide = linear_f8_reference(normed, weight, scale, bias, activations, input_scale)
    return (wide if gate is None else gated_activation_reference(wide, gate)), total


def gated_linear_f8_reference(
    x: torch.Tensor,
    kind: Gate,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> torch.Tensor:
    """`linear_f8(gated_activation(x, kind))`: x [T, 2 * I] -> [T, O]. What the gate makes is rounded to x's dtype."""
    gated = gated_activation_reference(x, kind)
    return linear_f8_reference(gated, weight, scale, bias, activations, input_scale)


def check_packed(x: torch.Tensor, weight: torch.Tensor, outputs: int, bias: torch.Tensor | None) -> None:
    """Raise ValueError unless `weight` is what `pack` makes of [outputs, I], and fits x [T, I] and bias [outputs]."""
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_tensor("weight", weight, _packed_shape(weight.dim(), outputs, x.shape[1]), (F8,), x.device)
    check_contiguous(x=x, weight=weight)
    check_bias(bias, outputs, x)


def _packed_shape(dims: int, outputs: int, inputs: int) -> tuple[int, ...]:
    """Shape of a packed weight in the form that has so many dimensions."""
    if dims == 2:
        return (outputs, inputs)
    return (-(-outputs // BLOCK), (-(-inputs // GROUP) + 1) * GROUP, BLOCK)


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> None:
    check_tensor("scale", scale, (None,), (torch.float32,), x.device)
    check_contiguous(scale=scale)
    check_packed(x, weight, scale.shape[0], bias)
    if activations not in get_args(Activations):
        raise ValueError(f"activations: must be one of {', '.join(get_args(Activations))}, got {activations!r}")
    if (input_scale is not None) != (activations == "static"):
        given = "none" if input_scale is None else "one"
        raise ValueError(f"input_scale: goes with activations 'static' alone, got {given} with {activations!r}")
    if input_scale is not None:
        check_tensor("input_scale", input_scale, (1,), (torch.float32,), x.device)


def _check_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> None:
    _check(x, weight, scale, bias, activations, input_scale)
    check_residual_norm(x, residual, norm_weight, eps)
    check_gate(gate, scale.shape[0])


def _check_gated(
    x: torch.Tensor,
    kind: Gate,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
    input_scale: torch.Tensor | None,
) -> None:
    check_gated(x, kind)
    _check(halves(x), weight, scale, bias, activations, input_scale)


linear_f8 = Operation(
    linear_f8_reference,
    _check,
    {
        "cpu": "quire.kernels.cpu.linear.linear_f8:linear_f8",
        "cuda": "quire.kernels.gpu.quantized.linear_f8:linear_f8",
    },
)
norm_linear_f8 = Operation(
    norm_linear_f8_reference,
    _check_norm,
    {
        "cpu": "quire.kernels.cpu.linear.linear_f8:norm_linear_f8",
        "cuda": "quire.kernels.gpu.quantized.linear_f8:norm_linear_f8",
    },
)
# elsewhere nothing is gained: the gate is where the product before it is
gated_linear_f8 = Operation(
    gated_linear_f8_reference,
    _check_gated,
    {"cuda": "quire.kernels.gpu.quantized.linear_f8:gated_linear_f8"},
)
