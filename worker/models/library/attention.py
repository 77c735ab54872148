"""Attention as the library's modules call it: our paged cache and kernels, behind its interface for other backends."""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from quire.kernels.attention.attention import AttentionRule, paged_attention
from quire.kernels.attention.rope_store_kv import rope_store_kv
from quire.worker.batch import ForwardBatch
from quire.worker.memory.kv_cache import KVCache
from quire.worker.models.library.both_ways import attend_both_ways

NAME: Final = "quire"
"""The name of ours in the library's table. Its table of masks has no such name, so none is built."""


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

    def begin(self, batch: ForwardBatch, cache: KVCache) -> None:
        shape = (batch.token_ids.shape[0], 1)
        ones = torch.ones(shape, dtype=torch.float32, device=batch.token_ids.device)
        self.step, self.number = (batch, cache, ones, torch.zeros_like(ones)), 0

    def attach(self, modules: nn.Module) -> None:
        """Let every one of them find it."""
        for module in modules.modules():
            module.__dict__[NAME] = self


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
    batch, cache, cos, sin = calls.step
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    if calls.looks_ahead:
        return attend_both_ways(query, key, value, batch.groups[0].attention, scale, sliding_window), None
    keys, values, key_scale, value_scale, group = cache.layers[calls.number]
    calls.number += 1
    rows = batch.groups[group]
    num_heads, num_tokens, head_dim = query.shape[1:]
    width = value.shape[3]
    if width < head_dim:
        value = pad(value, (0, head_dim - width))
    heads = torch.cat([one.transpose(1, 2) for one in (query, key, value)], 2).view(num_tokens, -1)
    rule = AttentionRule(scale, sliding_window, softcap)
    grouped = rope_store_kv(heads, cos, sin, keys, values, rows.slot_mapping, None, None, 0.0, key_scale, value_scale)
    sinks = None
    if s_aux is not None:  # which a rank has of all heads, whatever its share of them is
        first = calls.rank * num_heads if s_aux.shape[0] > num_heads else 0
        sinks = s_aux[first : first + num_heads].float().contiguous()
    out = paged_attention(grouped, keys, values, rows.attention, rule, sinks, key_scale, value_scale)
    return out.view(1, num_tokens, num_heads, head_dim)[..., :width], None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
