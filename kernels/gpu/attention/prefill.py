"""Attention of rows that run several tokens (prompts, their chunks, drafts): tiles of 128 query rows over paged keys.

Two bodies of one result: `prefill_specialized` for Hopper and pages of at least a key tile, once a run of it is on
record (`prefill_switch`), `prefill_plain` for the rest, and wherever windows are chunks or tokens look ahead. Dao,
"FlashAttention-2", arXiv 2307.08691; Shah et al., "FlashAttention-3", arXiv 2407.08608.

Floor: 4 * H * D FLOPs for each pair of a token and a position it sees; the keys and values of a row once for each of
its query tiles (from the L2 cache but for the first), the queries and outputs once.
"""

from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from quire.kernels.attention.attention import AttentionRule, PagedBatch
from quire.kernels.attention.tile_schedule import QUERY_ROWS_PER_TILE, TileSchedule, tokens_per_tile
from quire.kernels.attention.window import Chunk
from quire.kernels.gpu import prefill_switch
from quire.kernels.gpu.attention.prefill_plain import prefill_plain
from quire.kernels.gpu.attention.prefill_specialized import prefill_specialized
from quire.kernels.gpu.attention.tile_schedule import size_of
from quire.kernels.gpu.attention.tiles import TYPES, PrefillBody, select_prefill_body
from quire.kernels.gpu.chip import chip_of


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
    if group > QUERY_ROWS_PER_TILE:
        raise ValueError(f"query: at most {QUERY_ROWS_PER_TILE} query heads to a key-value head, got {group}")
    if query.dtype not in TYPES:
        raise ValueError(f"query: {query.dtype} runs on the CPU only; use one of {', '.join(map(str, TYPES))}")
    if keys.dtype == torch.float8_e4m3fn and capability < 89:
        raise ValueError(f"keys: {keys.dtype} needs compute capability 8.9, not {capability / 10}; use 16 bits")
    ahead = rule.looks_ahead and batch.last_visible is not None
    trusted = prefill_switch.is_trusted() and not ahead
    body = select_prefill_body(capability, keys.shape[1], head_dim, query.dtype, keys.dtype, rule.window, trusted)
    launch(body, query, keys, values, batch, schedule, rule, sinks, key_scale, value_scale, out)


def launch(
    body: PrefillBody,
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
    plain: dict[str, Any] = {}
    if body.specialized:
        triton.set_allocator(_scratch)
        cache = (_descriptor(keys, body.keys), _descriptor(values, body.keys))
    else:
        plain["last_visible"] = batch.last_visible if rule.looks_ahead else None
        plain["CHUNKED"] = isinstance(rule.window, Chunk)
    prefill_kernel(body)[(num_kv_heads, tiles, QUERY_ROWS_PER_TILE // body.rows)](
        query,
        *cache,
        out,
        batch.block_tables,
        batch.slots,
        batch.seq_lens,
        batch.query_starts,
        schedule.prefill_tiles,
        sinks,
        key_scale,
        value_scale,
        rule.scale,
        rule.soft_cap,
        None if rule.window is None else size_of(rule.window),
        num_rows,
        num_tokens,
        batch.block_tables.shape[1],
        **plain,
        **prefill_constants(body, group, head_dim, keys.shape[1]),
        num_warps=body.num_warps,
        num_stages=body.num_stages,
    )


def prefill_kernel(body: PrefillBody) -> Any:
    return prefill_specialized if body.specialized else prefill_plain


def prefill_constants(body: PrefillBody, group: int, head_dim: int, block_size: int) -> dict[str, Any]:
    """Compile-time arguments of the body's kernel."""
    model = {"GROUP": group, "HEAD_DIM": head_dim, "BLOCK_SIZE": block_size, "KEYS": body.keys}
    plain = {"ROWS": body.rows, "PADDED_DIM": max(16, triton.next_power_of_2(head_dim))}
    return {**model, **({} if body.specialized else plain), "COMPUTE": TYPES[body.compute]}


def _descriptor(cache: torch.Tensor, keys: int) -> TensorDescriptor:
    """Descriptor of [num_blocks, block_size, K * D]: a tile of one head's keys is a box, with zeros beyond its page."""
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    return TensorDescriptor(cache, [num_blocks, block_size, width], [block_size * width, width, 1], [1, keys, head_dim])


def _scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Memory for the descriptors that a kernel makes itself; within a capture it belongs to the graph's pool."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
