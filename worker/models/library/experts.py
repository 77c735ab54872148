"""Experts as the library's modules call them: our kernel where it has their gate, else the library's own product."""

from typing import Any, Final

import torch
from transformers.integrations.moe import (
    ALL_EXPERTS_FUNCTIONS,
    _default_apply_gate,
    grouped_mm_experts_forward,
)

from quire.kernels.experts.experts import experts
from quire.worker.fields import ACTIVATIONS
from quire.worker.models.library.attention import NAME


def is_ours(module: Any) -> bool:
    """The experts are gated blocks as our kernel has them: gate rows before up rows, a known activation, no bias."""
    plain = module.has_gate and module.is_concatenated and not module.is_transposed and not module.has_bias
    return plain and type(module)._apply_gate is _default_apply_gate and _activation(module) in ACTIVATIONS


def _activation(module: Any) -> str:
    config = module.config
    return str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", ""))


def run_experts(module: Any, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """hidden [T, H], ids and weights [T, k] -> [T, H], the weighted sum of each token's experts."""
    if hidden.is_meta:  # which experts there are to run is nowhere written
        return torch.empty_like(hidden)
    if not is_ours(module):
        other: torch.Tensor = grouped_mm_experts_forward(module, hidden, ids, weights)
        return other
    kind = ACTIVATIONS[_activation(module)]
    chosen, shares = ids.int().contiguous(), weights.float().contiguous()
    return experts(hidden.contiguous(), chosen, shares, module.gate_up_proj.data, module.down_proj.data, kind, 0)


ALL_EXPERTS_FUNCTIONS.register(NAME, run_experts)
EXPERTS: Final = NAME
