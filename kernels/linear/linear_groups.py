"""Linear layers on codes of 4 to 8 bits, of which the inputs of a group share a scale and an offset for each output.

A weight is scale * (code - zero point), or scale * code - minimum, or scale * the number that a table has for the
code. Scales and minima may be small themselves, multiples of units that several groups share. Where activations are
rounded, each row's 32 inputs become integers with a scale of their own: a token's result does not depend on what else
is in the batch. The sums of integers are exact, what they are scaled and added up to is float32.
"""

from typing import Literal, get_args

import torch
from torch import unflatten

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.activation import Gate, check_gate, gated_activation_reference
from quire.kernels.linear.code_tables import Table, check_table, numbers
from quire.kernels.linear.norm import check_residual_norm, residual_norm_reference

Bits = Literal[4, 5, 6, 8]
"""Width of a code, which is unsigned."""
Activations = Literal["int8", "none"]
"""Rows are rounded to integers of 8 bits, or left as they are."""

BLOCK = 16
"""Outputs that lie together in a packed weight."""
LANE = 4
"""Bytes of an output that lie together: what one lane of a vector multiplies at once."""
SIDE = 32
"""Inputs of a row that share a scale."""
SCALES = (torch.float16, torch.bfloat16, torch.float32)
"""Dtypes of scales and of minima that are no integers."""
UNIT_DTYPES = {torch.int8: torch.float16, torch.float8_e4m3fn: torch.float32}
"""Dtypes of small scales, and of minima like them -> that of what they are multiples of."""
POWERS = torch.float8_e8m0fnu
"""Dtype of scales that are powers of two."""
LEAST_MAGNITUDE = 1e-30
"""Inputs that are all smaller are rounded to zeros."""
_PIECE = 4096
"""Rows of a weight packed at once: the steps in between take several times their memory."""


def side(bits: Bits, size: int) -> int:
    """Inputs that are multiplied before they are scaled: groups of `size` inputs are of whole such."""
    return SIDE // 2 if bits == 6 or size % SIDE else SIDE


def pack(codes: torch.Tensor, bits: Bits) -> torch.Tensor:
    """codes uint8 [O, I], I a multiple of 32 -> packed uint8 [ceil(O / 16), I * bits / 32, 16, 4].

    Of 8 bits, byte (b, n, o, i) is the code of output 16 b + o and input 4 n + i; of 4 bits its low half is that of
    input 8 n + i, and its high half that of input 8 n + i + 4. Codes of 5 and 6 bits lie in steps of 32 and 16 inputs:
    their low 4 bits like codes of 4, then a word of those above, where bits t j .. t j + t - 1 of byte i are those of
    input 4 j + i of the step (t = 1 or 2). What lies beyond the outputs is 0.

    Raises ValueError for a code of more bits, and for another dtype or shape.
    """
    check_tensor("codes", codes, (None, None), (torch.uint8,), codes.device)
    outputs, inputs = codes.shape
    _check_inputs("codes", inputs)
    shape = (-(-outputs // BLOCK), inputs * bits // (8 * LANE), BLOCK, LANE)
    packed = torch.zeros(shape, dtype=torch.uint8, device=codes.device)
    for start in range(0, outputs, _PIECE):
        piece = codes[start : start + _PIECE]
        if bits < 8 and piece.numel() and int(piece.max()) >> bits:
            most = (1 << bits) - 1
            raise ValueError(f"codes: must be at most {most} where they have {bits} bits, got {int(piece.max())}")
        rows = packed.new_zeros((-(-piece.shape[0] // BLOCK) * BLOCK, shape[1], LANE))
        rows[: piece.shape[0]] = _words(piece.reshape(piece.shape[0], -1, LANE), bits)
        blocks = rows.view(-1, BLOCK, shape[1], LANE)
        packed[start // BLOCK :][: blocks.shape[0]] = blocks.transpose(1, 2)
    return packed


def _words(codes: torch.Tensor, bits: Bits) -> torch.Tensor:
    """Codes of rows [R, I / 4, 4] -> the words that hold them [R, I * bits / 32, 4]."""
    if bits == 8:
        return codes
    low, high = unflatten(codes & 15, 1, (-1, 2)).unbind(2)
    halves = low | high << 4
    if bits == 4:
        return halves
    top = bits - 4
    steps = unflatten(codes >> 4, 1, (-1, 8 // top))
    tops = torch.zeros_like(steps[:, :, 0])
    for place, some in enumerate(steps.unbind(2)):
        tops |= some << place * top
    return torch.cat((unflatten(halves, 1, (-1, 4 // top)), tops[:, :, None]), 2).flatten(1, 2)


def unpack(packed: torch.Tensor, bits: Bits, outputs: int, inputs: int) -> torch.Tensor:
    """The codes that `pack` stored: uint8 [outputs, inputs]."""
    words = packed.transpose(1, 2).flatten(0, 1)[:outputs]
    if bits == 8:
        return words.reshape(outputs, inputs)
    top = bits - 4
    steps = unflatten(words, 1, (-1, 4 // top + 1)) if top else words[:, :, None]
    halves = steps[:, :, : 4 // top] if top else steps
    codes = torch.stack((halves & 15, halves >> 4), 3).flatten(2, 3)
    if top:
        places = [steps[:, :, -1] >> place * top & (1 << top) - 1 for place in range(8 // top)]
        codes = codes | torch.stack(places, 2) << 4
    return codes.reshape(outputs, inputs)


def pack_scale(scale: torch.Tensor) -> torch.Tensor:
    """Scales or offsets of any dtype [O, G] -> what these operations take in their place, of the same dtype and shape.

    In memory the 16 outputs of a block lie together, group after group; a last block of fewer is as much smaller.
    """
    outputs, groups = scale.shape
    whole = outputs // BLOCK * BLOCK
    blocks = scale[:whole].view(-1, BLOCK, groups).transpose(1, 2)
    return torch.cat((blocks.reshape(-1), scale[whole:].T.reshape(-1))).view(outputs, groups)


def unpack_scale(packed: torch.Tensor) -> torch.Tensor:
    """The scales or offsets that `pack_scale` was given: [O, G]."""
    outputs, groups = packed.shape
    whole, flat = outputs // BLOCK * BLOCK, packed.reshape(-1)
    blocks = flat[: whole * groups].view(-1, groups, BLOCK).transpose(1, 2).reshape(whole, groups)
    return torch.cat((blocks, flat[whole * groups :].view(groups, -1).T))


def scaled(levels: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """Plain scales or minima, float32 [O, G], out of integers [O, G] and their units [O, U], U of which divide G."""
    return levels.float() * unit.float().repeat_interleave(levels.shape[1] // unit.shape[1], 1)


def plain(
    scale: torch.Tensor, offset: torch.Tensor | None, unit: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and offsets as they are, where the operations take `pack_scale` of them; without units."""
    scale, offset = unpack_scale(scale), None if offset is None else unpack_scale(offset)
    if unit is None:
        return scale, offset
    return scaled(scale, unpack_scale(unit[0])), None if offset is None else scaled(offset, unpack_scale(unit[1]))


def minima(scale: torch.Tensor, offset: torch.Tensor | None, bits: Bits) -> torch.Tensor:
    """The minima, float32 [O, G], that plain scales and offsets mean: a weight is scale * code - minimum.

    offset None: codes are symmetric, their zero point is half of their range. uint8: zero points. Else: the minima.
    """
    if offset is None:
        return scale.float() * (1 << bits - 1)
    return scale.float() * offset.float() if offset.dtype == torch.uint8 else offset.float()


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, I] -> integers -127..127 [T, I / 32, 32] and scales [T, I / 32], both float32: x is about their product.

    A scale is the largest magnitude of 32 inputs over 127, or 1 where that is 0; halves round to even. Where one of the
    inputs is NaN or infinite the integers are 0, and the scale is NaN.
    """
    wide = x.float().view(x.shape[0], x.shape[1] // SIDE, SIDE)
    largest = wide.abs().amax(2)
    scale = torch.where(largest < LEAST_MAGNITUDE, 1.0, largest / 127)
    integers = torch.where(largest.isfinite()[..., None], (wide / scale[..., None]).round(), 0.0)
    return integers, torch.where(largest.isfinite(), scale, torch.nan)


def linear_groups_reference(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    activations: Activations,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """`x @ W.T + bias`, W = scale * code - minimum: x [T, I], bias [O] -> [T, O].

    `packed` is `pack(codes, bits)`; `scale` and `offset` are `pack_scale` of [O, G], groups of I / G inputs; `minima`
    says what offsets mean. With `unit`, float16 [1, O, U], or [2, O, U] where there are minima, scales and minima are
    int8: multiples of the units that G / U groups share, each packed by `pack_scale`. With a `table` a code of 4 bits
    stands for the number there, and there is no offset; scales may then be e4m3 too, multiples of units float32, or
    powers of two (e8m0). activations "int8" rounds x to
    integers (`quantize`); with "none" the product is that of x itself. A row with a NaN or an infinity gives no finite
    number.
    """
    (outputs, groups), inputs = scale.shape, x.shape[1]
    factor, offset = plain(scale, offset, unit)
    least = torch.zeros_like(factor, dtype=torch.float32) if table else minima(factor, offset, bits)
    codes = numbers(unpack(packed, bits, outputs, inputs), table)
    if activations == "none":
        wide = codes.view(outputs, groups, -1) * factor.float()[..., None] - least[..., None]
        out = x.float() @ wide.view(outputs, inputs).T
    else:
        integers, row_scale = quantize(x)
        out = torch.zeros((x.shape[0], outputs), dtype=torch.float32, device=x.device)
        step = side(bits, inputs // groups)
        for start in range(0, inputs, step):
            group, inside = start * groups // inputs, slice(start, start + step)
            part = integers.flatten(1)[:, inside]
            exact = part @ codes[:, inside].T
            product = exact * factor[:, group].float() - part.sum(1, keepdim=True) * least[:, group]
            out += product * row_scale[:, start // SIDE, None]
    return (out if bias is None else out + bias.float()).to(x.dtype)


def norm_linear_groups_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    activations: Activations,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_groups(rms_norm(total))` and `total = residual + x`, with the gated activation if asked for.

    Like `norm_linear`: x and residual [T, I] -> ([T, O], or with a gate [T, O / 2]; total [T, I]).
    """
    normed, total = residual_norm_reference(x, residual, norm_weight, eps)
    wide = linear_groups_reference(normed, packed, scale, offset, bias, bits, activations, unit, table)
    return (wide if gate is None else gated_activation_reference(wide, gate)), total


def _check_inputs(name: str, inputs: int) -> None:
    if inputs % SIDE:
        raise ValueError(f"{name}: inputs must be a multiple of {SIDE}, got {inputs}")


def _check(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    activations: Activations,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_table(table, bits, offset)
    multiples = tuple(UNIT_DTYPES) if table else (torch.int8,)
    apart = (*SCALES, POWERS) if table else SCALES
    check_tensor("scale", scale, (None, None), apart if unit is None else multiples, x.device)
    (outputs, groups), inputs = scale.shape, x.shape[1]
    if bits not in get_args(Bits):
        raise ValueError(f"bits: must be 4, 5, 6 or 8, got {bits!r}")
    if activations not in get_args(Activations):
        raise ValueError(f"activations: must be int8 or none, got {activations!r}")
    _check_inputs("x", inputs)
    least = SIDE // 2 if bits == 6 or table else SIDE
    if groups == 0 or inputs // least % groups:
        raise ValueError(f"scale: {groups} groups of {inputs} inputs are not of the same multiple of {least}")
    shape = (-(-outputs // BLOCK), inputs * bits // (8 * LANE), BLOCK, LANE)
    check_tensor("packed", packed, shape, (torch.uint8,), x.device)
    check_contiguous(x=x, packed=packed, scale=scale)
    if offset is not None:
        dtypes = (torch.uint8, scale.dtype) if unit is None else (scale.dtype,)
        check_tensor("offset", offset, (outputs, groups), dtypes, x.device)
        check_contiguous(offset=offset)
    if unit is not None:
        check_tensor("unit", unit, (1 if offset is None else 2, outputs, None), (UNIT_DTYPES[scale.dtype],), x.device)
        check_contiguous(unit=unit)
        if unit.shape[2] == 0 or groups % unit.shape[2]:
            raise ValueError(f"unit: {unit.shape[2]} units are not of equally many of {groups} groups")
    if bias is not None:
        check_tensor("bias", bias, (outputs,), (x.dtype,), x.device)
        check_contiguous(bias=bias)


def _check_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    packed: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    activations: Activations,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> None:
    _check(x, packed, scale, offset, bias, bits, activations, unit, table)
    check_residual_norm(x, residual, norm_weight, eps)
    check_gate(gate, scale.shape[0])


linear_groups = Operation(
    linear_groups_reference, _check, {"cpu": "quire.kernels.cpu.linear.linear_groups:linear_groups"}
)
norm_linear_groups = Operation(
    norm_linear_groups_reference, _check_norm, {"cpu": "quire.kernels.cpu.linear.linear_groups:norm_linear_groups"}
)
