"""The head of a model of the library, run alone: in place of its trunk stands what only hands on its input."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling, MoeModelOutputWithPast
from transformers.utils.generic import ModelOutput

from quire.worker.models.library.modules import POOLER, Modules, Parts


@dataclass
class TrunkOutput(MoeModelOutputWithPast):
    """All that a head may ask its trunk for."""

    cross_attentions: None = None
    shared_kv_states: None = None


class Given(nn.Module):
    """Stands for the trunk where only the head is run: its result is what was given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        self.pooler: nn.Module | None = None

    @property
    def decoder(self) -> "Given":
        """Itself: some heads ask for the decoder in their trunk."""
        return self

    def forward(self, *_: Any, **__: Any) -> ModelOutput:
        hidden: Any = self.hidden
        if self.pooler is not None:
            return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=self.pooler(hidden))
        return TrunkOutput(last_hidden_state=hidden)


def behind(parts: Parts) -> tuple[Modules, Given]:
    """The modules without their trunk, and what stands for it."""
    given = Given()
    if getattr(parts.trunk, POOLER, None) is not None:
        given.pooler, parts.trunk.pooler = parts.trunk.pooler, None
    setattr(parts.whole, parts.trunk_name, given)
    return parts.whole, given


class LabelHead(nn.Module):
    """The library's own head of labels, in float32: it is small, and its numbers are the answer."""

    def __init__(self, parts: Parts) -> None:
        """Takes the trunk out of `parts.whole`."""
        super().__init__()
        self.shell, self._given = behind(parts)
        self.shell.config = copy(self.shell.config)
        # no text is padded; without the field a head refuses several texts at once
        vars(self.shell.config)["pad_token_id"] = 0

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """float32 [S, hidden], of texts or tokens -> float32 [S, labels]: to the head each is a text of one token."""
        self._given.hidden = pooled[:, None]
        logits: torch.Tensor = self.shell(input_ids=None, inputs_embeds=pooled[:, None], use_cache=False).logits
        return logits.flatten(1)
