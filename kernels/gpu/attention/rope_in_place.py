"""Rotary positions of queries and keys where they lie. Of a token's heads the first two thirds turn, dealt out in
order, ROWS to a program, so that the two elements of a rotating pair meet in one thread.

Floor for each token: 4 * H * D elements moved and 8 * half bytes of angles; some 3 FLOPs for each element, so memory is
the limit. Attention could turn what it reads instead, and would turn every key again for each tile of queries.
"""

import torch
import triton
import triton.language as tl

NUM_WARPS = 4
PAIRS_PER_THREAD = 8


@triton.jit(do_not_specialize=["num_tokens"])
def rope_in_place_kernel(
    qkv,
    cos,
    sin,
    num_tokens,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """A row is a query or a key. HALF_BLOCK: HALF padded."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    token = (row // (2 * HEADS)).to(tl.int64)
    pair = tl.arange(0, HALF_BLOCK)[None, :]
    real = (token < num_tokens) & (pair < HALF)
    angle_cos = tl.load(cos + token * HALF + pair, real, other=0.0)
    angle_sin = tl.load(sin + token * HALF + pair, real, other=0.0)
    place = qkv + token * (3 * HEADS * D) + row % (2 * HEADS) * D + pair
    first = tl.load(place, real, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, real, other=0.0).to(tl.float32)
    tl.store(place, (first * angle_cos - second * angle_sin).to(qkv.dtype.element_ty), real)
    tl.store(place + HALF, (second * angle_cos + first * angle_sin).to(qkv.dtype.element_ty), real)


def rope_in_place(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
    """See `quire.kernels.attention.rope_in_place`."""
    num_tokens, width = qkv.shape
    half = cos.shape[1]
    if num_tokens and half:
        constants = rope_in_place_constants(num_heads, width // (3 * num_heads), half)
        programs = triton.cdiv(num_tokens * 2 * num_heads, constants["ROWS"])
        rope_in_place_kernel[(programs,)](qkv, cos, sin, num_tokens, **constants, num_warps=NUM_WARPS)


def rope_in_place_constants(num_heads: int, head_dim: int, half: int) -> dict[str, int]:
    """Compile-time arguments of the kernel."""
    block = triton.next_power_of_2(half)
    rows = max(1, NUM_WARPS * 32 * PAIRS_PER_THREAD // block)
    return {"HEADS": num_heads, "D": head_dim, "HALF": half, "HALF_BLOCK": block, "ROWS": rows}
