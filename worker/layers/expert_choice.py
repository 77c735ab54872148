"""The choice of experts in a layer, and where the choices of a step stay, so that they can be counted."""

import torch
from torch import nn

from quire.kernels.experts.route import Routing, route
from quire.worker.batch import ForwardBatch
from quire.worker.specs.spec import ExpertsSpec


class ExpertChoice(nn.Module):
    """The experts of each token, by its logits."""

    def __init__(self, spec: ExpertsSpec) -> None:
        super().__init__()
        self.spec = spec
        self.routing = Routing(
            spec.num_experts,
            spec.top_k,
            spec.scores,
            spec.renormalize,
            spec.scale,
            spec.num_groups,
            spec.top_groups,
        )
        self.kept: torch.Tensor | None = None
        """int32 [most tokens, k]: where the choices of the last step stay; None: nowhere."""

    def forward(
        self, logits: torch.Tensor, bias: torch.Tensor | None, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `quire.kernels.experts.route`; padding of the batch has no experts."""
        kept = None if self.kept is None else self.kept[: len(logits)]
        return route(logits, bias, batch.groups[0].slot_mapping, self.routing, kept)
