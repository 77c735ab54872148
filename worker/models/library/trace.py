"""A forward pass of the library's modules without weights: which attention it calls, in which order, and with what."""

from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from quire.worker.fields import shown
from quire.worker.models.library.attention import NAME
from quire.worker.models.library.modules import LIBRARY, Parts, first_line
from quire.worker.models.library.plan import dealt
from quire.worker.models.library.reads import Reads
from quire.worker.specs.library.spec import LibraryAttention
from quire.worker.weights.parts import ModelError

TOKENS = 5
"""Tokens of the pass: as many as no axis of a model has."""


class Trace:
    """Stands for attention, and writes down every call."""

    def __init__(self, parts: Parts) -> None:
        self.attentions: list[LibraryAttention] = []
        self.directions: set[bool] = set()
        """Those of the calls: True where tokens see those after them."""
        self._names = {module: name for name, module in parts.whole.named_modules()}
        self._whole = parts.whole

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        is_causal: bool | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        name = self._names.get(module, "")
        looks_ahead = not (getattr(module, "is_causal", True) if is_causal is None else is_causal)
        self.directions.add(looks_ahead)
        if len(self.directions) > 1:
            raise ModelError("architectures", f"tokens see those after them at {name}, elsewhere not; it is not served")
        if looks_ahead and (softcap is not None or s_aux is not None):
            message = f"tokens see those after them at {name}, with a cap or a sink of scores; it is not served"
            raise ModelError("architectures", message)
        num_heads, head_dim, num_kv_heads = query.shape[1], query.shape[3], key.shape[1]
        if not num_heads or not num_kv_heads or not head_dim or num_heads % num_kv_heads:
            message = (
                f"{name} has {num_heads} heads of {head_dim} elements and {num_kv_heads} of keys; it is not served"
            )
            raise ModelError("num_attention_heads", message)
        if sliding_window is not None and (type(sliding_window) is not int or sliding_window < 1):
            message = f"{name} has a window of {shown(sliding_window)}, which is no positive integer"
            raise ModelError("sliding_window", message)
        expected = (1, num_kv_heads, TOKENS)
        if key.shape != (*expected, head_dim) or value.shape[:3] != expected or value.shape[3] > head_dim:
            shapes = f"keys {list(key.shape)} and values {list(value.shape)}"
            raise ModelError("architectures", f"{name} has {shapes}, which no KV cache holds; it is not served")
        self.attentions.append(
            LibraryAttention(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                window=sliding_window,
                divided=self._is_divided(name, module),
            )
        )
        return unweighted(module, query, key, value)

    def _is_divided(self, name: str, module: nn.Module) -> bool:
        """Ranks make some of its heads each: a layer in it deals out its outputs."""
        own = [own for own, child in module.named_children() if isinstance(child, nn.Linear)]
        return any(dealt(self._whole, f"{name}.{one}") in ("outputs", "halves") for one in own)


def run_flat(parts: Parts, attention: Any) -> torch.Tensor:
    """Run the trunk with this in place of attention -> the last hidden states [1, TOKENS, hidden].

    Raises ModelError.
    """
    ours = ALL_ATTENTION_FUNCTIONS[NAME]
    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    tokens = torch.zeros((1, TOKENS), dtype=torch.int64, device="meta")
    positions = torch.arange(TOKENS, device="meta")[None]
    try:
        hidden: torch.Tensor = parts.trunk(input_ids=tokens, position_ids=positions, use_cache=False)[0]
    except ModelError:
        raise
    except Exception as error:
        message = f"the modules of {LIBRARY} do not run a flat batch: {first_line(error)}"
        raise ModelError("architectures", message) from error
    finally:
        ALL_ATTENTION_FUNCTIONS.register(NAME, ours)
    return hidden


def unweighted(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    """Stands for attention, too, where its call is known."""
    return value.new_empty((1, TOKENS, query.shape[1], value.shape[3])), None


def trace(parts: Parts, reads: Reads) -> tuple[int, tuple[LibraryAttention, ...], bool]:
    """Width of the last hidden state, the calls of attention in their order, and whether tokens see those after them.

    `reads` is handed what the pass does. Raises ModelError.
    """
    found = Trace(parts)
    with reads:
        hidden = run_flat(parts, reads.attending(found))
    if not found.attentions:
        raise ModelError("architectures", f"the modules of {LIBRARY} never ask for attention; it is not served")
    return int(hidden.shape[-1]), tuple(found.attentions), found.directions == {True}
