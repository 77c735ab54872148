"""Names of the tensors of experts in checkpoints: those of each one, and those of all experts of a layer together."""

from typing import Final

from quire.worker.weights.layout import StackedLayout, stacked
from quire.worker.weights.names import NameRule

EXPERTS: Final = "blocks.{n}.mlp.experts."
GATE_UP: Final = EXPERTS + "{e}.gate_up.{part}.{tensor}"
DOWN: Final = EXPERTS + "{e}.down.{tensor}"
"""Targets of an expert's tensors."""
STACKED: Final = EXPERTS + "{part}.{tensor}"
HALVES: Final = ("gate_up.gate", "gate_up.up")
"""Target of a tensor of all experts, and what of each lies in one of the two."""


def of_each(block: str) -> tuple[NameRule, ...]:
    """Rules for the tensors of each expert. `block`: pattern of what stands before "experts"."""
    expert = rf"{block}experts\.(?P<e>\d+)\."
    return (
        NameRule(rf"{expert}(?P<part>gate|up)_proj\.(?P<tensor>\w+)", GATE_UP),
        NameRule(rf"{expert}down_proj\.(?P<tensor>\w+)", DOWN),
    )


def of_all(block: str, layout: StackedLayout) -> tuple[NameRule, ...]:
    """Rules for matrices of all experts in two tensors."""
    target = STACKED.replace("{tensor}", "weight")
    return (
        NameRule(rf"{block}experts\.gate_up_proj", target, HALVES, of_experts=layout),
        NameRule(rf"{block}experts\.down_proj", target, ("down",), of_experts=layout),
    )


def of_all_by_part(block: str) -> tuple[NameRule, ...]:
    """Rules for matrices of all experts in three tensors, as GGUF files have them, under the names of one's."""
    parts = {"gate": HALVES[0], "up": HALVES[1], "down": "down"}
    return tuple(
        NameRule(rf"{block}experts\.{part}_proj\.(?P<tensor>\w+)", STACKED, (path,), of_experts=stacked)
        for part, path in parts.items()
    )


def linear_of_each(block: str) -> tuple[str, ...]:
    """Names of the linear layers of each expert. `block`: what stands before "experts", with {n} in it."""
    return tuple(f"{block}experts.{{e}}.{part}_proj" for part in ("gate", "up", "down"))
