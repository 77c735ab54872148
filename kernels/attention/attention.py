"""Attention over a paged cache, for a batch that mixes decode rows and prompt chunks.

Shape legend: T tokens, R rows, N slots, K key-value heads, G query heads of each, H = K * G, D head dim, B blocks a
table holds, C context positions of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from quire.kernels.attention.int8_rows import dequantize_rows, quantize_rows, row_width
from quire.kernels.attention.tile_schedule import TileSchedule
from quire.kernels.attention.window import Window, oldest_seen
from quire.kernels.checks import CACHES, FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """The positions a token sees and the shape of their scores; fixed for a layer."""

    scale: float
    window: Window | None = None
    """Positions before its own that a token sees; None: all."""
    soft_cap: float | None = None
    """Scores become `soft_cap * tanh(score / soft_cap)`."""
    looks_ahead: bool = False
    """A token sees on to its `last_visible` position, where the batch has such a column; else none after its own."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The rows of a step as attention sees them. Row r owns tokens query_starts[r]:query_starts[r + 1]."""

    block_tables: torch.Tensor
    """int32 [N, B], by slot; only the first ceil(seq_len / block_size) entries of a row mean something"""
    slots: torch.Tensor
    """int32 [R]"""
    seq_lens: torch.Tensor
    """int32 [R]: tokens of the sequence after this step, cached ones included; 0 for a row of padding"""
    query_starts: torch.Tensor
    """int32 [R + 1]"""
    num_decodes: int
    """Leading rows of one token."""
    query_lens_host: tuple[int, ...]
    """Copies for the host's control flow: reading the device would wait for it. Inside a captured graph they are those
    of the capture, so forms for GPUs read only the tensors."""
    seq_lens_host: tuple[int, ...]
    schedules: Mapping[Window | None, TileSchedule]
    """Tile schedules for the forms for GPUs, by window; empty elsewhere."""
    last_visible: torch.Tensor | None = None
    """int32 [T]: the last position that each token sees in layers that look ahead: its own, or, of an item whose tokens
    see each other, the item's last, which this step runs, too. It falls nowhere within a row."""
    num_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field. Once a step, so that the layers need not look again."""
        queries, lengths, num_rows = self.query_lens_host, self.seq_lens_host, len(self.query_lens_host)
        object.__setattr__(self, "num_tokens", sum(queries))
        device = self.block_tables.device
        check_tensor("block_tables", self.block_tables, (None, None), (torch.int32,), device)
        check_tensor("slots", self.slots, (num_rows,), (torch.int32,), device)
        check_tensor("seq_lens", self.seq_lens, (num_rows,), (torch.int32,), device)
        check_tensor("query_starts", self.query_starts, (num_rows + 1,), (torch.int32,), device)
        check_contiguous(
            block_tables=self.block_tables, slots=self.slots, seq_lens=self.seq_lens, query_starts=self.query_starts
        )
        if self.last_visible is not None:
            check_tensor("last_visible", self.last_visible, (None,), (torch.int32,), device)
            check_contiguous(last_visible=self.last_visible)
            if self.last_visible.shape[0] < self.num_tokens:
                raise ValueError(
                    f"last_visible: holds {self.last_visible.shape[0]} tokens, the rows run {self.num_tokens}"
                )
        if len(lengths) != num_rows:
            raise ValueError(f"seq_lens_host: expected {num_rows} rows, got {len(lengths)}")
        if queries[: self.num_decodes].count(1) != self.num_decodes:
            raise ValueError(f"num_decodes: the first {self.num_decodes} rows must have one token each, got {queries}")
        if any(not 0 <= query <= length for query, length in zip(queries, lengths, strict=True)):
            raise ValueError("query_lens_host: no row runs more tokens than its seq_lens_host")


def paged_attention_reference(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    rule: AttentionRule,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of each row's last `query_len` tokens over its `seq_len` cached ones -> [T, H * D].

    query [K, T, G, D], rows one after another; keys, values [num_blocks, block_size, K, D], this step's included; in a
    cache of int8 they are the rows of int8_rows.py, and each head of a query is rounded to such a row, too.
    sinks float32 [H]: a logit per head that takes part in the softmax's denominator alone. key_scale, value_scale
    float32 [K]: what the cache holds is multiplied by them. Whatever lies in the cache beyond a row's length, NaN too,
    does not touch its result; tokens behind the last row are padding and come out undefined (here: zero).
    """
    num_kv_heads, num_tokens, groups, head_dim = query.shape
    block_size = keys.shape[1]
    out = query.new_zeros((num_tokens, num_kv_heads * groups * head_dim))
    stop = 0
    for row, (query_len, seq_len) in enumerate(zip(batch.query_lens_host, batch.seq_lens_host, strict=True)):
        start, stop = stop, stop + query_len
        if query_len == 0:
            continue
        own = torch.arange(seq_len - query_len, seq_len, device=query.device)
        oldest, newest = oldest_seen(own, rule.window), own
        if rule.looks_ahead and batch.last_visible is not None:
            newest = batch.last_visible[start:stop].long()
        first = int(oldest[0]) // block_size  # blocks before it may be another row's by now
        blocks = batch.block_tables[batch.slots[row], first : -(-seq_len // block_size)].long()
        context = torch.arange(first * block_size, seq_len, device=query.device)
        key = _gathered(keys, blocks, len(context), key_scale)
        value = _gathered(values, blocks, len(context), value_scale)
        asked = query[:, start:stop].float()
        if keys.dtype == torch.int8:
            asked = dequantize_rows(quantize_rows(asked))
        hidden = (context < oldest[:, None]) | (context > newest[:, None])
        out[start:stop] = _attend(asked, key, value, hidden, rule, sinks).to(query.dtype)
    return out


def _gathered(cache: torch.Tensor, blocks: torch.Tensor, length: int, scale: torch.Tensor | None) -> torch.Tensor:
    """float32 [K, C = length, D] of one row's cache."""
    # index_select knows no 8-bit floats; their bytes move just as well
    raw = cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
    rows = raw.index_select(0, blocks).view(cache.dtype).flatten(0, 1)[:length].transpose(0, 1)
    rows = dequantize_rows(rows) if cache.dtype == torch.int8 else rows.float()
    return rows if scale is None else rows * scale[:, None, None]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    hidden: torch.Tensor,
    rule: AttentionRule,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """float32 [K, t, G, D] over [K, C, D], but for what is hidden, bool [t, C] -> [t, K * G * D]."""
    num_kv_heads, num_tokens, groups, _ = query.shape
    scores = torch.einsum("ktgd,kcd->kgtc", query, key) * rule.scale
    if rule.soft_cap is not None:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        extra = sinks.view(num_kv_heads, groups, 1, 1).expand(-1, -1, num_tokens, 1)
        scores = torch.cat((scores, extra), dim=-1)
    weights = scores.softmax(-1)[..., : key.shape[1]]
    # what a row may not see may be NaN, and 0 * NaN is not 0; a row that may see NaN must show it
    unseen = hidden.all(dim=0)
    value = value.masked_fill(unseen[:, None], 0.0)
    return torch.einsum("kgtc,kcd->tkgd", weights, value).flatten(1)


def _check(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: PagedBatch,
    rule: AttentionRule,
    sinks: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> None:
    num_kv_heads, num_tokens, groups, head_dim = query.shape
    device = query.device
    check_tensor("query", query, (None, None, None, None), FLOATS, device)
    check_tensor("keys", keys, (None, None, num_kv_heads, row_width(head_dim, keys.dtype)), CACHES, device)
    check_tensor("values", values, tuple(keys.shape), (keys.dtype,), device)
    if num_tokens < batch.num_tokens:
        raise ValueError(f"query: holds {num_tokens} tokens, the batch's rows run {batch.num_tokens}")
    if batch.block_tables.device != device:
        raise ValueError(f"batch: expected on {device}, got {batch.block_tables.device}")
    check_contiguous(query=query, keys=keys, values=values)
    if sinks is not None:
        check_tensor("sinks", sinks, (num_kv_heads * groups,), (torch.float32,), device)
        check_contiguous(sinks=sinks)
    for name, scale in (("key_scale", key_scale), ("value_scale", value_scale)):
        if scale is not None:
            check_tensor(name, scale, (num_kv_heads,), (torch.float32,), device)
            check_contiguous(**{name: scale})
        elif keys.dtype == torch.float8_e4m3fn:
            raise ValueError(f"{name}: a cache of 8-bit floats needs one scale for each key-value head")


paged_attention = Operation(
    paged_attention_reference,
    _check,
    {
        "cuda": "quire.kernels.gpu.attention.attention:paged_attention",
        "cpu": "quire.kernels.cpu.attention:paged_attention",
    },
)
