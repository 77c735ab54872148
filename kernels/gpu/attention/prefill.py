"""Attention of rows that run several tokens (prompts, their chunks, drafts): tiles of 128 query rows over paged keys.

Two bodies of one result: `prefill_specialized` for Hopper and pages of at least a key tile, once a run of it is on
record (`prefill_switch`), `prefill_plain` for the rest. Dao, "FlashAttention-2", arXiv 2307.08691; Shah et al.,
"FlashAttention-3", arXiv 2407.08608.

Floor: 4 * H * D FLOPs for each pair of a token and a position it sees; the keys and values of a row once for each of
its query tiles (from the L2 cache but for the first), the queries and outputs once.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.attention.tile_schedule import TileSchedule
from quire.kernels.gpu.aot.build import Build, Feature, has_eight_bits, matrix_feature
from quire.kernels.gpu.attention.prefill_plain import prefill_plain
from quire.kernels.gpu.attention.prefill_specialized import prefill_specialized
from quire.kernels.gpu.attention.query_tile import QUERIES
from quire.kernels.gpu.chip import chip_of
from quire.kernels.gpu.tuning import prefill_switch

ROWS_PER_TILE: int = QUERIES.value
TYPES = {
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


@dataclass(frozen=True, slots=True)
class Body:
    """Which kernel runs, and what its launch fixes."""

    specialized: bool
    rows: int
    """of queries that a program takes, of the 128 of a tile"""
    keys: int
    """of a tile"""
    compute: torch.dtype
    """of the products' operands"""
    num_warps: int
    num_stages: int


def tokens_per_tile(group: int) -> int:
    """Tokens whose `group` query heads fill a tile of queries: what `fill_tile_schedule` needs to know."""
    return max(1, ROWS_PER_TILE // group)


def choose_body(
    capability: int,
    block_size: int,
    head_dim: int,
    query_type: torch.dtype,
    cache_type: torch.dtype,
    window: int | None = None,
    specialized: bool = True,
) -> Body:
    """The body for a chip (90 is compute capability 9.0) and a model; without `specialized` the plain one.

    The numbers are those that the compiler fits into registers and shared memory with every option on.
    """
    eight_bits = cache_type == torch.float8_e4m3fn
    wide = head_dim > 128
    compute = query_type
    if eight_bits and query_type == torch.bfloat16 and not (wide and capability >= 90):
        # it holds 8-bit floats exactly, and the machine makes two at once; the queries it converts take registers
        compute = torch.float16
    specialized &= capability == prefill_switch.CAPABILITY and query_type.itemsize == 2 and cache_type.itemsize <= 2
    if specialized and head_dim in (64, 128):
        for keys in (64,) if eight_bits else (128, 64):
            if block_size >= keys and (window is None or window >= keys):
                return Body(True, ROWS_PER_TILE, keys, compute, num_warps=4, num_stages=2)
    if query_type == torch.float32:  # each factor of a product is held as a sum of two
        return Body(False, 16, 16, compute, 8, 2) if wide else Body(False, 32, 32, compute, 8, 2)
    if 90 <= capability < 120:
        return Body(False, 128, 32 if wide else 64, compute, 8, 3)
    return Body(False, 64, 32, compute, 8, 2) if wide else Body(False, 128, 64, compute, 8, 2)


def prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    schedule: TileSchedule,
    rule: AttentionRule,
    sinks: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Attention of the rows of several tokens, into their rows of out [T, H * D]; the others stay as they are.

    The remaining arguments are those of `paged_attention`. Raises ValueError for a scale that is not positive, more
    than 128 query heads to a key-value head, or a type that the kernels or the chip do not know.
    """
    _, _, group, head_dim = query.shape
    capability = chip_of(query.device).capability
    if rule.scale <= 0:
        raise ValueError(f"rule.scale: must be positive, got {rule.scale}; negate the queries instead")
    if group > ROWS_PER_TILE:
        raise ValueError(f"query: at most {ROWS_PER_TILE} query heads to a key-value head, got {group}")
    if query.dtype not in TYPES:
        raise ValueError(f"query: {query.dtype} runs on the CPU only; use one of {', '.join(map(str, TYPES))}")
    if keys.dtype == torch.float8_e4m3fn and capability < 89:
        raise ValueError(f"keys: {keys.dtype} needs compute capability 8.9, not {capability / 10}; use 16 bits")
    trusted = prefill_switch.is_trusted()
    body = choose_body(capability, keys.shape[1], head_dim, query.dtype, keys.dtype, rule.sliding_window, trusted)
    launch(body, query, keys, values, batch, schedule, rule, sinks, key_scale, value_scale, out)


def launch(
    body: Body,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    schedule: TileSchedule,
    rule: AttentionRule,
    sinks: torch.Tensor | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """`prefill` by a given body. The grid depends on shapes alone, so a captured graph stays right."""
    num_kv_heads, num_tokens, group, head_dim = query.shape
    num_rows = batch.seq_lens.shape[0]
    if num_tokens == 0 or num_rows == 0:
        return
    # every row of two tokens and more may end with a tile that is not full
    tiles = num_tokens // tokens_per_tile(group) + min(num_rows, num_tokens // 2)
    if tiles == 0:
        return
    cache: tuple[object, object] = (keys, values)
    if body.specialized:
        triton.set_allocator(_scratch)
        cache = (_descriptor(keys, body.keys), _descriptor(values, body.keys))
    _kernel(body)[(num_kv_heads, tiles, ROWS_PER_TILE // body.rows)](
        query, *cache, out, batch.block_tables, batch.slots, batch.seq_lens, batch.query_starts, schedule.prefill_tiles,
        sinks, key_scale, value_scale, rule.scale, rule.soft_cap, rule.sliding_window,
        num_rows, num_tokens, batch.block_tables.shape[1],
        **_constants(body, group, head_dim, keys.shape[1]),
        num_warps=body.num_warps, num_stages=body.num_stages,
    )  # fmt: skip


def _kernel(body: Body) -> Any:
    return prefill_specialized if body.specialized else prefill_plain


def _constants(body: Body, group: int, head_dim: int, block_size: int) -> dict[str, Any]:
    model = {"GROUP": group, "HEAD_DIM": head_dim, "BLOCK_SIZE": block_size, "KEYS": body.keys}
    plain = {"ROWS": body.rows, "PADDED_DIM": triton.next_power_of_2(head_dim)}
    return {**model, **({} if body.specialized else plain), "COMPUTE": TYPES[body.compute]}


def _descriptor(cache: torch.Tensor, keys: int) -> TensorDescriptor:
    """Of [num_blocks, block_size, K * D]: a tile of one head's keys is a box in it, with zeros beyond its page."""
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    return TensorDescriptor(cache, [num_blocks, block_size, width], [block_size * width, width, 1], [1, keys, head_dim])


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Memory for the descriptors that a kernel makes itself; within a capture it belongs to the graph's pool."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def builds(capability: int) -> Iterator[Build]:
    """On Hopper every head size and every class of type, page and option that `choose_body` tells apart."""
    f16, bf16, f32, f8 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    yield _build(capability, 128, bf16, options=True)
    yield _build(capability, 256, bf16, f8 if has_eight_bits(capability) else bf16, options=True)
    if capability in (80, 120):
        yield _build(capability, 128, f32, options=True)
    if capability != 90:
        return
    for head_dim in (64, 80, 96):
        yield _build(capability, head_dim, bf16)
    for head_dim in (64, 128, 256):
        yield _build(capability, head_dim, f32, options=True)
    yield _build(capability, 128, bf16, f8, options=True)
    yield _build(capability, 128, f16)
    yield _build(capability, 256, bf16, options=True)
    yield _build(capability, 256, bf16, block_size=64)
    for head_dim, block_size in itertools.product((64, 128), (64, 128)):
        yield _build(capability, head_dim, bf16, block_size=block_size)
        yield _build(capability, head_dim, bf16, block_size=block_size, specialized=False)
    for cache_type in (f16, f8):
        yield _build(capability, 128, f16, cache_type, block_size=128, options=True)
    yield _build(capability, 128, bf16, f8, block_size=64, options=True)
    yield _build(capability, 64, bf16, f8, block_size=64, options=True)


def _build(
    capability: int,
    head_dim: int,
    query_type: torch.dtype,
    cache_type: torch.dtype | None = None,
    block_size: int = 16,
    options: bool = False,
    specialized: bool = True,
) -> Build:
    """`options`: a window, a soft cap and sinks."""
    cache_type = cache_type or query_type
    body = choose_body(capability, block_size, head_dim, query_type, cache_type, specialized=specialized)
    q, c = TYPES[query_type], TYPES[cache_type]
    cache = f"tensordesc<{c}[1, {body.keys}, {head_dim}]>" if body.specialized else f"*{c}"
    given: dict[str, str | None] = {
        "query": f"*{q}",
        **dict.fromkeys(("keys", "values"), cache),
        "out": f"*{q}",
        **dict.fromkeys(("block_tables", "slots", "seq_lens", "query_starts", "tiles"), "*i32"),
        "sinks": "*fp32" if options else None,
        **dict.fromkeys(("key_scale", "value_scale"), "*fp32" if cache_type == torch.float8_e4m3fn else None),
        "scale": "fp32",
        "soft_cap": "fp32" if options else None,
        "window": "i32" if options else None,
        **dict.fromkeys(("num_rows", "num_tokens", "table_width"), "i32"),
    }
    features: set[Feature] = {"mma" if query_type == torch.float32 else matrix_feature(capability)}
    return Build(
        name=f"d{head_dim} {q} cache {c} page {block_size}{' options' if options else ''}"
        + (" specialized" if body.specialized else ""),
        kernel=_kernel(body),
        signature={name: kind for name, kind in given.items() if kind is not None},
        constants={
            **{name: None for name, kind in given.items() if kind is None},
            **_constants(body, 4, head_dim, block_size),
        },
        num_warps=body.num_warps,
        num_stages=body.num_stages,
        divisible=tuple(name for name, kind in given.items() if kind is not None and kind.startswith("*")),
        features=frozenset(features | ({"warp_specialize", "tma"} if body.specialized else {"wide_copy"})),
    )
