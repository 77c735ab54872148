"""Linear layers on codes of groups as GPUs read them: words of 32 bits, which become weights of the model's dtype.

A weight is scale * (code - zero point), or scale * code - minimum, rounded once; activations stay as they are. Codes of
4 bits may stand for other numbers, those of a table: then a weight is scale * number. Floats (e2m1) have scales of a
byte; e4m3 ones are multiples of a unit for each output: the product of scale and number is exact in 16 bits, and the
unit multiplies the output's sums. Scales and minima of int8 are multiples of a unit for each output and superblock.
Codes of 5 and 6 bits lie in bytes, symmetric ones about 128.
`kernels/linear/linear_groups.py` is the same on codes as processors read them.
"""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.activation import Gate, check_gate, gated_activation_reference
from quire.kernels.linear.code_tables import Table, check_table, numbers
from quire.kernels.linear.linear_groups import POWERS, SCALES, SIDE, Bits, scaled
from quire.kernels.linear.norm import check_residual_norm, residual_norm_reference

WORDS = 32
"""Words of an output that lie together: four of them, 16 bytes, are what a thread copies at once."""
WORD_BITS = 32
SUPERBLOCK = 256
"""Inputs whose int8 scales are multiples of the same number."""
MOST_WORDS = 2**31 - 1
"""Words of a weight at most, 8 GB: kernels count them in 32 bits."""
_PIECE = 4096
"""Rows of a weight packed at once: the steps in between take several times their memory."""


def tile_inputs(bits: Bits) -> int:
    """Inputs of an output whose words lie together: 256 of 4 bits, 128 of 8."""
    return WORDS * WORD_BITS // bits


def pack_words(codes: torch.Tensor, bits: Bits) -> torch.Tensor:
    """codes uint8 [O, I], I a multiple of 32 -> words int32 [ceil(I / tile), O, 32], a tile `tile_inputs(bits)` inputs.

    Bits `bits * p` and following of word (n, o, j) are the code of output o and input n * tile + 32 p + j: one shift
    of 32 words gives 32 inputs that lie one after the other, all of one group. What lies beyond the inputs is 0.

    Raises ValueError for a code of more bits, and for another dtype or shape.
    """
    check_tensor("codes", codes, (None, None), (torch.uint8,), codes.device)
    outputs, inputs = codes.shape
    if inputs % SIDE:
        raise ValueError(f"codes: inputs must be a multiple of {SIDE}, got {inputs}")
    tile = tile_inputs(bits)
    tiles = -(-inputs // tile)
    words = torch.empty((tiles, outputs, WORDS), dtype=torch.int32, device=codes.device)
    for start in range(0, outputs, _PIECE):
        piece = codes[start : start + _PIECE]
        if piece.numel() and int(piece.max()) >> bits:
            raise ValueError(f"codes: must be at most {(1 << bits) - 1}, got {int(piece.max())}")
        whole = piece.new_zeros((piece.shape[0], tiles * tile))
        whole[:, :inputs] = piece
        slices = whole.view(-1, tiles, tile // WORDS, WORDS).permute(1, 0, 2, 3)
        packed = slices[:, :, 0].int()
        for place in range(1, tile // WORDS):
            packed |= slices[:, :, place].int() << bits * place
        words[:, start : start + _PIECE] = packed
    return words


def unpack_words(words: torch.Tensor, bits: Bits, inputs: int) -> torch.Tensor:
    """The codes that `pack_words` stored: int32 [O, inputs]."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32, device=words.device)
    slices = (words[:, :, None] >> shifts[:, None]) & (1 << bits) - 1
    return slices.permute(1, 0, 2, 3).flatten(1)[:, :inputs]


def dequantize_words_reference(
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bits: Bits,
    inputs: int,
    dtype: torch.dtype,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """The weight [O, inputs] that is meant: made in float32, each with the rounding of one product or one
    multiplication and addition, then rounded to `dtype`; with the unit of its e4m3 scales where that is given."""
    stored = unpack_words(words, bits, inputs)
    codes = (numbers(stored, table) if table else stored).double()
    groups = codes.view(codes.shape[0], scale.shape[0], -1)
    wide, least = scale.T, None if offset is None else offset.T
    if unit is not None and scale.dtype == torch.int8:
        wide, least = scaled(wide, unit[0].T), None if least is None else scaled(least, unit[1].T)
        unit = None
    wide, least = wide.double()[..., None], None if least is None else least.double()[..., None]
    if table:
        weight = groups * wide * (1 if unit is None else unit.double()[:, None, None])
    elif offset is None or least is None:
        weight = (groups - (1 << bits - 1)) * wide
    else:
        weight = (groups - least) * wide if offset.dtype == torch.uint8 else groups * wide - least
    return weight.view(codes.shape).float().to(dtype)


def linear_group_words_reference(
    x: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """`x @ W.T + bias`: x [T, I], bias [O] -> [T, O], W the weight that is meant in the dtype of x.

    `words` is `pack_words(codes, bits)`; `scale` and `offset` are [G, O] for groups of I / G inputs. offset None: the
    zero point is half of the codes' range; uint8: zero points; else minima, of the scales' dtype. With a `table` codes
    of 4 bits stand for the numbers there and have no offset. Scales of e2m1 are powers of two (e8m0), or e4m3 and
    multiples of `unit`, float32 [O]; others may be int8, and minima too, and multiples of `unit`, float16 [1 or 2,
    I / 256, O].
    """
    of_sums = unit if scale.dtype == torch.float8_e4m3fn else None
    of_weight = unit if of_sums is None else None
    weight = dequantize_words_reference(words, scale, offset, bits, x.shape[1], x.dtype, of_weight, table)
    wide = torch.promote_types(x.dtype, torch.float32)
    out = x.to(wide) @ weight.to(wide).T
    if of_sums is not None:
        out *= of_sums
    return (out if bias is None else out + bias).to(x.dtype)


def norm_linear_group_words_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_group_words(rms_norm(total))` and `total = residual + x`, with the gated activation if asked for.

    Like `norm_linear`: x and residual [T, I] -> ([T, O], or with a gate [T, O / 2]; total [T, I]).
    """
    normed, total = residual_norm_reference(x, residual, norm_weight, eps)
    wide = linear_group_words_reference(normed, words, scale, offset, bias, bits, unit, table)
    return (wide if gate is None else gated_activation_reference(wide, gate)), total


def _check(
    x: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> None:
    check_tensor("x", x, (None, None), FLOATS, x.device)
    check_contiguous(x=x)
    check_words(x.device, x.shape[1], words, scale, offset, bits, unit, table)
    if bias is not None:
        check_tensor("bias", bias, (scale.shape[1],), (x.dtype,), x.device)
        check_contiguous(bias=bias)


def check_words(
    device: torch.device,
    inputs: int,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bits: Bits,
    unit: torch.Tensor | None,
    table: Table,
) -> None:
    """Raise ValueError unless these are the words of a weight of so many inputs, with scales and offsets."""
    check_table(table, bits, offset)
    check_tensor("scale", scale, (None, None), _scales(table, unit is not None), device)
    groups, outputs = scale.shape
    if bits not in (4, 8):
        raise ValueError(f"bits: must be 4 or 8, got {bits!r}")
    if inputs % SIDE or groups == 0 or (inputs // SIDE % groups and inputs != groups * SIDE // 2):
        least = f"{SIDE // 2}, nor of the same multiple of {SIDE}"
        raise ValueError(f"scale: {groups} groups of {inputs} inputs are not of {least}")
    shape = (-(-inputs // tile_inputs(bits)), outputs, WORDS)
    check_tensor("words", words, shape, (torch.int32,), device)
    if words.numel() > MOST_WORDS:
        raise ValueError(f"words: must be at most {MOST_WORDS}, got {words.numel()}")
    check_contiguous(words=words, scale=scale)
    if offset is not None:
        integers = () if scale.dtype == torch.int8 else (torch.uint8,)
        check_tensor("offset", offset, (groups, outputs), (*integers, scale.dtype), device)
        check_contiguous(offset=offset)
    if unit is not None:
        _check_unit(unit, scale, inputs, 1 if offset is None else 2)


def _check_unit(unit: torch.Tensor, scale: torch.Tensor, inputs: int, count: int) -> None:
    groups, outputs = scale.shape
    if scale.dtype != torch.int8:
        check_tensor("unit", unit, (outputs,), (torch.float32,), scale.device)
    elif inputs % SUPERBLOCK or groups % (inputs // SUPERBLOCK):
        raise ValueError(f"unit: {inputs} inputs in {groups} groups are no superblocks of {SUPERBLOCK}")
    else:
        check_tensor("unit", unit, (count, inputs // SUPERBLOCK, outputs), (torch.float16,), scale.device)
    check_contiguous(unit=unit)


def _scales(table: Table, has_unit: bool) -> tuple[torch.dtype, ...]:
    """Dtypes that scales may have."""
    if table == "e2m1":
        return (torch.float8_e4m3fn,) if has_unit else (POWERS,)
    return (torch.int8,) if has_unit else SCALES


def _check_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> None:
    _check(x, words, scale, offset, bias, bits, unit, table)
    check_residual_norm(x, residual, norm_weight, eps)
    check_gate(gate, scale.shape[1])


linear_group_words = Operation(
    linear_group_words_reference, _check, {"cuda": "quire.kernels.gpu.quantized.linear_group_words:linear_group_words"}
)
norm_linear_group_words = Operation(
    norm_linear_group_words_reference,
    _check_norm,
    {"cuda": "quire.kernels.gpu.quantized.linear_group_words:norm_linear_group_words"},
)
