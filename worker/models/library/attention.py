"""Attention as the library's modules call it: our paged cache and kernels, behind its interface for other backends."""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from quire.kernels.attention.attention import AttentionRule, PagedBatch, paged_attention
from quire.kernels.attention.encoder_attention import encoder_attention
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.worker.batch import ForwardBatch
from quire.worker.memory.kv_cache import KVCache

NAME: Final = "quire"
"""The name of ours in the library's table. Its table of masks has no such name, so none is built."""


TILE: Final = 256
"""Queries that a product with the keys around them takes at a time, where they see those behind them, too."""


@dataclass(slots=True)
class Calls:
    """The step that runs, which a call of attention finds at its module: the n-th call has the n-th layer of the cache.

    The library calls with keywords that not every module hands on, so they cannot carry it.
    """

    rank: int
    looks_ahead: bool = False
    """Every token sees all of its prompt, and nothing is cached."""
    step: tuple[ForwardBatch, KVCache, torch.Tensor, torch.Tensor] | None = None
    """Its batch, the cache, and a rotation by nothing: heads come rotated."""
    number: int = 0
    """Calls of attention so far."""
    turned: tuple[torch.Tensor | None, torch.Tensor | None] = None, None
    """The last cosines and sines of the library's, [1, T, head_dim]."""
    angles: tuple[torch.Tensor, torch.Tensor] | None = None
    """The same as our kernel reads them, float32 [T, head_dim / 2]."""

    def begin(self, batch: ForwardBatch, cache: KVCache) -> None:
        shape = (batch.token_ids.shape[0], 1)
        ones = torch.ones(shape, dtype=torch.float32, device=batch.token_ids.device)
        self.step, self.number = (batch, cache, ones, torch.zeros_like(ones)), 0
        self.turned, self.angles = (None, None), None

    def angles_of(self, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of rows that hold each twice, as `angles`."""
        if self.angles is None or self.turned[0] is not cos or self.turned[1] is not sin:
            first, second = (one[0, :, : one.shape[2] // 2].float().contiguous() for one in (cos, sin))
            self.turned, self.angles = (cos, sin), (first, second)
        return self.angles

    def mix(
        self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rule: AttentionRule, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """heads [T, (H + 2K) * D], queries and keys to be rotated, of the next layer of the cache -> [T, H * D]."""
        assert self.step is not None
        batch, cache = self.step[:2]
        keys, values, key_scale, value_scale, group = cache.layers[self.number]
        self.number += 1
        rows = batch.groups[group]
        grouped = rope_store_kv(
            heads, cos, sin, keys, values, rows.slot_mapping, None, None, 0.0, key_scale, value_scale
        )
        return paged_attention(grouped, keys, values, rows.attention, rule, sinks, key_scale, value_scale)

    def attach(self, modules: nn.Module) -> None:
        """Let every one of them find it."""
        for module in modules.modules():
            module.__dict__[NAME] = self


def attend_both_ways(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: PagedBatch, scale: float, window: int | None
) -> torch.Tensor:
    """query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D]. With a window a token sees those less than
    `window` tokens away."""
    num_heads, num_tokens, head_dim = query.shape[1:]
    shared = num_heads // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    heads = torch.cat([one[0].transpose(0, 1) for one in (query, key, value)], 1)
    if window is None:
        flat = heads.view(num_tokens, -1)
        out = encoder_attention(flat, rows.query_starts, rows.query_lens_host, num_heads, scale)
        return out.view(1, num_tokens, num_heads, head_dim)
    mixed = query.new_zeros((num_tokens, num_heads, head_dim))
    stop = 0
    for length in rows.query_lens_host:
        start, stop = stop, stop + length
        for first in range(start, stop, TILE):
            last, low = min(first + TILE, stop), max(start, first - window + 1)
            high = min(stop, last + window - 1)
            places = torch.arange(low, high, device=query.device)
            near = (places[first - low : last - low, None] - places).abs() < window
            parts = query[:, :, first:last], key[:, :, low:high], value[:, :, low:high]
            mixed[first:last] = scaled_dot_product_attention(*parts, near, scale=scale)[0].transpose(0, 1)
    return mixed[None]


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, H, T, D], key [1, K, T, D], value [1, K, T, V], rotated, of the step's tokens -> [1, T, H, V]."""
    calls: Calls = module.__dict__[NAME]
    assert calls.step is not None
    batch, _cache, cos, sin = calls.step
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    if calls.looks_ahead:
        return attend_both_ways(query, key, value, batch.groups[0].attention, scale, sliding_window), None
    num_heads, num_tokens, head_dim = query.shape[1:]
    width = value.shape[3]
    if width < head_dim:
        value = pad(value, (0, head_dim - width))
    heads = torch.cat([one.transpose(1, 2) for one in (query, key, value)], 2).view(num_tokens, -1)
    sinks = None
    if s_aux is not None:  # which a rank has of all heads, whatever its share of them is
        first = calls.rank * num_heads if s_aux.shape[0] > num_heads else 0
        sinks = s_aux[first : first + num_heads].float().contiguous()
    out = calls.mix(heads, cos, sin, AttentionRule(scale, sliding_window, softcap), sinks)
    return out.view(1, num_tokens, num_heads, head_dim)[..., :width], None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
