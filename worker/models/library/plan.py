"""The way that ranks share the library's modules: its own plan, as far as our layers can follow it."""

from collections.abc import Mapping
from typing import Final

from torch import nn
from transformers.distributed.tensor_parallel import _get_parameter_tp_plan

from quire.worker.models.library.modules import LIBRARY, Modules
from quire.worker.specs.library.spec import Dealt

STYLES: Final[Mapping[str, Dealt]] = {
    "colwise": "outputs",
    "colwise_gather_output": "gathered",
    "colwise_rep": "gathered",
    "packed_colwise": "halves",
    "rowwise": "inputs",
    "rowwise_split_input": "own_inputs",
    "rowwise_rep": "own_inputs",
}
"""The library's words for linear layers -> ours."""
EXPERTS: Final = "moe_tp_experts"
"""The library's word for a module of experts, whose sums are added up behind it."""
OF_EXPERTS: Final[Mapping[str, Dealt]] = {"packed_colwise": "halves", "rowwise": "inputs"}
"""The same for the matrices of experts."""
WHOLE: Final = ("replicated_with_grad_allreduce", "mla_kv_a_proj")
"""Those for modules that every rank has, which differ when a model is trained."""


def style_of(whole: Modules, name: str) -> str:
    """The plan's word for a module, or for a parameter of one; empty: none."""
    return str(_get_parameter_tp_plan(name, whole.tp_plan or {}, is_weight=False) or "")


def dealt(whole: Modules, name: str) -> Dealt:
    """The way a linear layer is shared: whole where the plan says nothing, or what `undivided` refuses."""
    return STYLES.get(style_of(whole, name), "")


def undivided(whole: Modules, head: nn.Module | None, embedding: nn.Module) -> str:
    """The reason why ranks cannot share the modules; empty: they can."""
    if not whole.tp_plan:
        return f"{type(whole).__name__} of {LIBRARY} has no plan by which ranks share it"
    for name, module in whole.named_modules():
        style = style_of(whole, name)
        if not style or style in WHOLE or module is head or module is embedding:
            continue
        known = STYLES if type(module) is nn.Linear else {EXPERTS: ""}
        if style not in known:
            return f"{name} is shared as {style} by the plan of {LIBRARY}, which is not served"
        if style == EXPERTS and not _shares_experts(whole, name, module):
            return f"the experts at {name} are shared in a way that is not served"
    return ""


def _shares_experts(whole: Modules, name: str, module: nn.Module) -> bool:
    own = {own: OF_EXPERTS.get(style_of(whole, f"{name}.{own}")) for own, _ in module.named_parameters(recurse=False)}
    return own == {"gate_up_proj": "halves", "down_proj": "inputs"} and not getattr(module, "is_transposed", True)
