"""Linear layers on codes of groups on a GPU: few tokens in a product of our own, many by cuBLAS on weights made first.

Floor of T tokens: O * I * bits / 8 bytes of codes, O * I / (inputs of a group) * (bytes of scale and offset), and
T * (I + O) * itemsize; 2 * T * O * I operations. 8B qkv (4096 -> 6144, 4 bits by 128, zero points) 13.2 MB.

Outputs are the rows of the matrix instruction and tokens its columns: a warp turns the words that it has copied into
weights (`group_codes.py`) in the registers from which it multiplies them. A layer is split along I where it has few
outputs, and the parts are added in their order: up to 64 tokens the result of one does not depend on how many others
there are. Weights of floats with e4m3 scales are exact there: their unit multiplies the sums. A superblock is a tile of
codes of 4 bits, or two of 8, so that what its scales are multiples of is read once for each of these.

For more tokens a piece of the weight of at most 64 MB is made and left to cuBLAS, then the next one in its place: the
larger tiles that would hide the making beside the product have to be measured first, and a whole layer's weight would
take as much as 1 GB beside a model that was quantized to be small. There the unit is in the weights, which are rounded.
"""

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.linear.add_parts import add_parts_kernel
from quire.kernels.gpu.linear.tiles import ADD_BLOCK
from quire.kernels.gpu.quantized.group_codes import dequantized, of_unit, slice_numbers, superblock_units
from quire.kernels.gpu.quantized.group_tiles import (
    BLOCK_O,
    MOST_TOKENS,
    PIECE_OUTPUTS,
    PIECE_WARPS,
    group_tiles,
    piece_outputs,
    slices_of,
)
from quire.kernels.gpu.quantized.word_sums import word_sums
from quire.kernels.linear.activation import Gate, gated_activation
from quire.kernels.linear.code_tables import Table
from quire.kernels.linear.linear_group_words import WORDS
from quire.kernels.linear.linear_groups import Bits
from quire.kernels.linear.norm import add_rms_norm, rms_norm

_WORDS = tl.constexpr(WORDS)


@triton.jit(do_not_specialize=["num_tokens", "steps"])
def linear_group_words_kernel(
    x,
    words,
    scale,
    offset,
    unit,
    bias,
    out,
    num_tokens,
    size_in,
    size_out,
    steps,
    group_size,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    RUN: tl.constexpr,
    PER: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """Program (block of tokens, block of outputs, part): `steps` tiles of words times x.

    group_size, RUN and PER: see `slices_of`. With SPLIT, `out` takes float32 sums [part, ROWS, size_out].
    """
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[None, :]
    columns = tl.program_id(1) * BLOCK_O + tl.arange(0, BLOCK_O)
    part = tl.program_id(2)
    rows = tl.where(columns < size_out, columns, 0)
    first = part * steps
    sums = word_sums(
        x + tokens * size_in,
        tokens < num_tokens,
        words,
        scale,
        offset,
        unit,
        rows,
        first,
        min(first + steps, tl.cdiv(size_in, 32 // BITS * _WORDS)),
        size_in,
        size_out,
        group_size,
        BITS,
        TABLE,
        RUN,
        PER,
        BLOCK_O,
        TOKENS,
    )
    real = (tokens < num_tokens) & (columns < size_out)[:, None]
    if SPLIT:
        tl.store(out + (part * ROWS + tokens) * size_out + columns[:, None], sums, real)
    else:
        if bias is not None:
            sums += tl.load(bias + rows[:, None]).to(tl.float32)
        tl.store(out + tokens * size_out + columns[:, None], sums.to(out.dtype.element_ty), real)


@triton.jit(do_not_specialize=["begin", "end"])
def dequantize_words_kernel(
    words,
    scale,
    offset,
    unit,
    out,
    begin,
    end,
    size_in,
    size_out,
    group_size,
    BITS: tl.constexpr,
    TABLE: tl.constexpr,
    RUN: tl.constexpr,
    PER: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Program (tile of inputs, block of outputs): weights of the outputs from `begin` to `end`, [end - begin, size_in].

    Floor: words, scales and offsets read, (end - begin) * I * itemsize bytes written.
    """
    SLICES: tl.constexpr = 32 // BITS
    tile = tl.program_id(0)
    columns = begin + tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.where(columns < end, columns, begin)
    lanes = tl.arange(0, _WORDS)[None, :]
    packed = tl.load(words + (tile * size_out + rows[:, None]) * _WORDS + lanes)
    of_scale, of_offset = superblock_units(unit, offset, tile, rows, size_in, size_out, BITS)
    for place in tl.static_range(SLICES):
        inner = (tile * SLICES + place) * _WORDS
        known = inner < size_in
        if place % RUN == 0:
            group = (tile * SLICES + place) * PER // RUN if group_size is None else inner // group_size
            wide, least = slice_numbers(
                scale, offset, unit, of_scale, of_offset, group, rows, size_out, known, BITS, PER, TABLE
            )
        weight = dequantized(packed, place, wide, least, offset, unit, BITS, TABLE)
        weight = of_unit(weight, unit, rows[:, None]).to(out.dtype.element_ty)
        tl.store(out + (columns - begin)[:, None] * size_in + inner + lanes, weight, ((columns < end) & known)[:, None])


def linear_group_words(
    x: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    unit: torch.Tensor | None = None,
    table: Table = "",
) -> torch.Tensor:
    """See `kernels/linear/linear_group_words.py`."""
    return _product(x, words, scale, offset, bias, None, bits, unit, table)


def norm_linear_group_words(
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
    """See `kernels/linear/linear_group_words.py`. The norm is a launch of its own: tokens go straight from memory into
    the copies that the matrix instructions read, which a norm on the way would make twice."""
    if residual is None:
        normed, total = rms_norm(x, norm_weight, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm_weight, eps)
    return _product(normed, words, scale, offset, bias, gate, bits, unit, table), total


def _product(
    x: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    unit: torch.Tensor | None,
    table: Table,
) -> torch.Tensor:
    if table == "e2m1":  # a type of 8-bit floats is not known on every chip
        scale = scale.view(torch.uint8)
    if x.shape[0] <= MOST_TOKENS and x.dtype in (torch.bfloat16, torch.float16):
        return _few_tokens(x, words, scale, offset, bias, gate, bits, unit, table)
    out = _many_tokens(x, words, scale, offset, bias, bits, unit, table)
    return out if gate is None else gated_activation(out, gate)


def _few_tokens(
    x: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    gate: Gate | None,
    bits: Bits,
    unit: torch.Tensor | None,
    table: Table,
) -> torch.Tensor:
    (num_tokens, size_in), (groups, size_out) = x.shape, scale.shape
    out = x.new_empty((num_tokens, size_out if gate is None else size_out // 2))
    if not out.numel():
        return out
    tiles = group_tiles(num_tokens, size_in, size_out, bits)
    tokens, parts, rows = tiles["tokens"], tiles["parts"], tiles["rows"]
    is_apart = parts > 1 or gate is not None  # gate and up are outputs of different programs
    sums = x.new_empty((parts, rows, size_out), dtype=torch.float32) if is_apart else out
    linear_group_words_kernel[(triton.cdiv(num_tokens, tokens), triton.cdiv(size_out, BLOCK_O), parts)](
        x,
        words,
        scale,
        offset,
        unit,
        None if is_apart else bias,
        sums,
        num_tokens,
        size_in,
        size_out,
        triton.cdiv(words.shape[0], parts),
        **slices_of(size_in, groups, bits),
        BITS=bits,
        TABLE=table,
        SPLIT=is_apart,
        ROWS=rows if is_apart else 0,
        TOKENS=tokens,
        BLOCK_O=BLOCK_O,
        num_warps=tiles["num_warps"],
        num_stages=tiles["num_stages"],
    )
    if is_apart:
        add_parts_kernel[(num_tokens, triton.cdiv(out.shape[1], ADD_BLOCK))](
            sums,
            bias,
            out,
            size_out,
            GATE=gate,
            PARTS=parts,
            ROWS=rows,
            BLOCK=ADD_BLOCK,
            num_warps=4,
        )
    return out


def _many_tokens(
    x: torch.Tensor,
    words: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: Bits,
    unit: torch.Tensor | None,
    table: Table,
) -> torch.Tensor:
    (num_tokens, size_in), (groups, size_out) = x.shape, scale.shape
    out = x.new_empty((num_tokens, size_out))
    if not out.numel():
        return out
    step = piece_outputs(size_in, size_out, x.element_size())
    workspace = x.new_empty((step, size_in))
    for begin in range(0, size_out, step):
        end = min(begin + step, size_out)
        dequantize_words_kernel[(words.shape[0], triton.cdiv(end - begin, PIECE_OUTPUTS))](
            words,
            scale,
            offset,
            unit,
            workspace,
            begin,
            end,
            size_in,
            size_out,
            **slices_of(size_in, groups, bits),
            BITS=bits,
            TABLE=table,
            OUTPUTS=PIECE_OUTPUTS,
            num_warps=PIECE_WARPS,
        )
        weight, piece = workspace[: end - begin].T, out[:, begin:end]
        if bias is None:
            torch.mm(x, weight, out=piece)
        else:
            torch.addmm(bias[begin:end], x, weight, out=piece)
    return out
