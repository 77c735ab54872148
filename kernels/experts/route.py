"""The choice of experts: the few of a layer that each token is sent to, and what their sum counts of each.

By the softmax of the router's logits (Shazeer et al., 2017; Fedus et al., 2021), or by sigmoids with a bias for the
choice alone and groups of experts (DeepSeek-V3, 2024). Shape legend: T tokens, E experts, k of them for each token.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation

NOWHERE = -1
"""Expert of a token that is padding."""
MOST_EXPERTS = 1024
LEAST_SUM = 1e-20
"""Added to the sum of sigmoids, which may all be zero."""


@dataclass(frozen=True, slots=True)
class Routing:
    """The rule by which a layer chooses."""

    num_experts: int
    top_k: int
    """Experts of each token."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False
    """The scores of the chosen are divided by their sum."""
    scale: float = 1.0
    """Factor of the weights in the end."""
    num_groups: int = 1
    """Groups of equally many experts, side by side: a group counts by the sum of its two best scores."""
    top_groups: int = 1
    """Groups that a token chooses from, the best."""


def route_reference(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    routing: Routing,
    kept: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [T, at least E], bias float32 [E] -> (experts int32 [T, k], the best first, weights float32 [T, k]).

    What lies behind the E-th logit is not read. The bias is added to the scores for the choice, not to the weights. Of
    equal scores the first expert's wins; NaN counts as the least for the choice, and stays in the weights. A token
    whose `slot_mapping`, int64 [T], is negative is padding: its experts are `NOWHERE`, its weights 0. `kept`,
    int32 [T, k]: the experts are written there.
    """
    wide = logits[:, : routing.num_experts].float()
    scores = wide.softmax(-1) if routing.scores == "softmax" else wide.sigmoid()
    choice = scores if bias is None else scores + bias
    choice = choice.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if routing.num_groups > 1:
        grouped = choice.view(len(choice), routing.num_groups, routing.num_experts // routing.num_groups)
        groups = grouped.topk(2, -1).values.sum(-1)
        chosen = _best(groups, routing.top_groups)
        left = torch.ones_like(groups, dtype=torch.bool).scatter_(1, chosen, torch.zeros_like(chosen, dtype=torch.bool))
        choice = grouped.masked_fill(left[:, :, None], -torch.inf).flatten(1)
    ids = _best(choice, routing.top_k)
    weights = scores.gather(1, ids)
    if routing.renormalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / (total if routing.scores == "softmax" else total + LEAST_SUM)
    weights = weights * routing.scale
    if slot_mapping is not None:
        padding = (slot_mapping < 0)[:, None]
        ids, weights = ids.masked_fill(padding, NOWHERE), weights.masked_fill(padding, 0.0)
    return ids.int() if kept is None else kept.copy_(ids), weights


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The places of the best scores in each row, the first of equal ones first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _check(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    routing: Routing,
    kept: torch.Tensor | None = None,
) -> None:
    check_tensor("logits", logits, (None, None), FLOATS, logits.device)
    check_contiguous(logits=logits)
    experts, groups = routing.num_experts, routing.num_groups
    if not 1 <= experts <= min(MOST_EXPERTS, logits.shape[1]):
        raise ValueError(f"logits: expected at least {experts} columns, at most {MOST_EXPERTS}, got {logits.shape[1]}")
    if experts % groups or not 1 <= routing.top_groups <= groups or (groups > 1 and experts < 2 * groups):
        raise ValueError(f"num_groups: {experts} experts are no {groups} groups to choose {routing.top_groups} from")
    if not 1 <= routing.top_k <= experts // groups * routing.top_groups:
        raise ValueError(f"top_k: {routing.top_k} of {experts} experts cannot be chosen")
    if bias is not None:
        check_tensor("bias", bias, (experts,), (torch.float32,), logits.device)
        check_contiguous(bias=bias)
    if slot_mapping is not None:
        check_tensor("slot_mapping", slot_mapping, (logits.shape[0],), (torch.int64,), logits.device)
        check_contiguous(slot_mapping=slot_mapping)
    if kept is not None:
        check_tensor("kept", kept, (logits.shape[0], routing.top_k), (torch.int32,), logits.device)
        check_contiguous(kept=kept)


route = Operation(
    route_reference,
    _check,
    {"cuda": "quire.kernels.gpu.experts.route:route", "cpu": "quire.kernels.cpu.experts.route:route"},
)
