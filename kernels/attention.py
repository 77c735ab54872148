"""Attention over a paged cache, for a batch that mixes decode rows and prompt chunks.

Shape legend: T tokens, R rows, H query heads, K key-value heads, G = H / K, D head dim, B blocks a table holds,
C context positions gathered for a row.
"""

import operator
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.kernels.checks import FLOATS, check_tensor
from quire.kernels.dispatch import Operation

GATHER_ELEMENTS = 1 << 20
"""Keys gathered at once for decode rows: as many as a processor's cache holds."""


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """Which positions a token sees and how their scores are shaped; fixed for a layer."""

    scale: float
    sliding_window: int | None = None
    """A token sees itself and the `sliding_window - 1` positions before it."""
    soft_cap: float | None = None
    """Scores become `soft_cap * tanh(score / soft_cap)`."""


def paged_attention_reference(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    num_decodes: int,
    query_lens_host: tuple[int, ...],
    seq_lens_host: tuple[int, ...],
    rule: AttentionRule,
) -> torch.Tensor:
    """Causal attention of each row's last `query_len` tokens over its `seq_len` cached ones -> [T, H, D].

    query [T, H, D], rows one after another; keys, values [num_blocks, block_size, K, D], this step's included;
    block_tables int32 [R, B]; seq_lens int32 [R]; query_starts int32 [R + 1]; the host's copies save this form from
    waiting for the device. The first `num_decodes` rows have one token each. Whatever lies in
    the cache beyond a row's length, NaN too, does not touch its result.
    """
    out = torch.empty_like(query)
    block_size = keys.shape[1]
    limit = GATHER_ELEMENTS // keys[0].numel()
    for rows, num_blocks in _decode_groups(seq_lens_host[:num_decodes], block_size, rule.sliding_window, limit):
        chosen = torch.tensor(rows, device=query.device)
        out[chosen] = _decode(query[chosen], keys, values, block_tables[chosen], seq_lens[chosen], num_blocks, rule)
    start = num_decodes
    for row in range(num_decodes, len(query_lens_host)):
        stop = start + query_lens_host[row]
        out[start:stop] = _prefill(query[start:stop], keys, values, block_tables[row], seq_lens_host[row], rule)
        start = stop
    return out


def _decode_groups(
    seq_lens: tuple[int, ...], block_size: int, sliding_window: int | None, max_blocks: int
) -> list[tuple[list[int], int]]:
    """Rows of similar length, and how many blocks each row of a group gathers.

    Padding costs at most about a third. A group of several rows gathers at most `max_blocks`.
    """
    if sliding_window is None:
        blocks = [-(-length // block_size) for length in seq_lens]
    else:  # a window that does not begin on a block's edge touches one block more
        blocks = [min(-(-length // block_size), -(-sliding_window // block_size) + 1) for length in seq_lens]
    groups: list[tuple[list[int], int]] = []
    for row in sorted(range(len(blocks)), key=blocks.__getitem__, reverse=True):
        rows, width = groups[-1] if groups else ([], 0)
        if rows and 4 * blocks[row] + 8 >= 3 * width and (len(rows) + 1) * width <= max_blocks:
            rows.append(row)
        else:
            groups.append(([row], blocks[row]))
    return groups


def _decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    num_blocks: int,
    rule: AttentionRule,
) -> torch.Tensor:
    """One token per row, [r, H, D], over one padded gather of `num_blocks` blocks."""
    num_rows, num_heads, head_dim = query.shape
    block_size, num_kv_heads = keys.shape[1], keys.shape[2]
    lengths = seq_lens.long()[:, None]
    oldest = torch.zeros_like(lengths) if rule.sliding_window is None else (lengths - rule.sliding_window).clamp(min=0)
    columns = oldest // block_size + torch.arange(num_blocks, device=query.device)
    # a table means nothing past the row's last block: gather the row's first block there, and hide it
    blocks = block_tables.gather(1, columns.masked_fill(columns * block_size >= lengths, 0)).flatten()
    first = oldest // block_size * block_size
    positions = first + torch.arange(num_blocks * block_size, device=query.device)
    hidden = (positions < oldest) | (positions >= lengths)
    context = (num_rows, num_blocks * block_size, num_kv_heads, head_dim)
    key, value = (cache.index_select(0, blocks).view(context) for cache in (keys, values))
    stale = hidden.nonzero(as_tuple=True)
    key[stale] = 0.0  # what a masked place holds may be NaN, and 0 * NaN is not 0
    value[stale] = 0.0
    # the G query heads of a key-value head stand in for a query length: no copy of the keys per head
    grouped = query.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    seen = ~hidden[:, None, None, :]
    return _attend(grouped, key.transpose(1, 2), value.transpose(1, 2), seen, False, rule).reshape(query.shape)


def _prefill(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_table: torch.Tensor,
    seq_len: int,
    rule: AttentionRule,
) -> torch.Tensor:
    """The last t tokens of one sequence, [t, H, D]."""
    num_tokens, num_heads, head_dim = query.shape
    block_size, num_kv_heads = keys.shape[1], keys.shape[2]
    start = seq_len - num_tokens
    window = seq_len if rule.sliding_window is None else rule.sliding_window
    oldest = max(0, start - window + 1)
    first_block = oldest // block_size
    first = first_block * block_size
    blocks = block_table[first_block : -(-seq_len // block_size)]
    key, value = (
        cache.index_select(0, blocks).view(-1, num_kv_heads, head_dim)[oldest - first : seq_len - first]
        for cache in (keys, values)
    )
    seen = None
    if start > 0 or window < seq_len:
        context = torch.arange(oldest, seq_len, device=query.device)
        distance = torch.arange(start, seq_len, device=query.device)[:, None] - context
        seen = (distance >= 0) & (distance < window)
    # key-value heads are the batch, their G query heads share one view of the keys
    groups = num_heads // num_kv_heads
    grouped = query.view(num_tokens, num_kv_heads, groups, head_dim).permute(1, 2, 0, 3)
    shared = (num_kv_heads, groups, key.shape[0], head_dim)
    key, value = (x.transpose(0, 1)[:, None].expand(shared) for x in (key, value))
    return _attend(grouped, key, value, seen, seen is None, rule).permute(2, 0, 1, 3).reshape(query.shape)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor | None,
    causal: bool,
    rule: AttentionRule,
) -> torch.Tensor:
    """[..., q, D] over [..., C, D]; `seen` is a bool mask that broadcasts to [..., q, C]."""
    key, value = key.to(query.dtype), value.to(query.dtype)
    if rule.soft_cap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=causal, scale=rule.scale)
    scores = (query @ key.transpose(-1, -2)).float() * rule.scale
    scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    if seen is None and causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    return scores.softmax(-1).to(query.dtype) @ value


def _check(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    num_decodes: int,
    query_lens_host: tuple[int, ...],
    seq_lens_host: tuple[int, ...],
    rule: AttentionRule,
) -> None:
    device, num_rows = query.device, len(query_lens_host)
    check_tensor("query", query, (sum(query_lens_host), None, None), FLOATS, device)
    check_tensor("keys", keys, (None, None, None, query.shape[2]), FLOATS, device)
    check_tensor("values", values, tuple(keys.shape), (keys.dtype,), device)
    check_tensor("block_tables", block_tables, (num_rows, None), (torch.int32,), device)
    check_tensor("seq_lens", seq_lens, (num_rows,), (torch.int32,), device)
    check_tensor("query_starts", query_starts, (num_rows + 1,), (torch.int32,), device)
    if query.shape[1] % keys.shape[2]:
        raise ValueError(f"query: {query.shape[1]} heads do not share {keys.shape[2]} key-value heads evenly")
    if len(seq_lens_host) != num_rows:
        raise ValueError(f"seq_lens_host: expected {num_rows} rows, got {len(seq_lens_host)}")
    if not 0 <= num_decodes <= num_rows or any(length != 1 for length in query_lens_host[:num_decodes]):
        raise ValueError(f"num_decodes: the first {num_decodes} rows must have one token each, got {query_lens_host}")
    if num_rows and (min(query_lens_host) < 1 or not all(map(operator.le, query_lens_host, seq_lens_host))):
        raise ValueError("query_lens_host: each row runs at least one token and at most its seq_lens_host")
    if num_rows and max(seq_lens_host) > block_tables.shape[1] * keys.shape[1]:
        raise ValueError(
            f"block_tables: {block_tables.shape[1]} blocks of {keys.shape[1]} hold no {max(seq_lens_host)} tokens"
        )


paged_attention = Operation(paged_attention_reference, _check)
