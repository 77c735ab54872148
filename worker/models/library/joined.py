"""Layers of a module of the library's that read the same tensor, as one product of ours."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from quire.kernels.attention.attention import AttentionRule
from quire.kernels.linear.activation import Gate, gated_activation
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import Linear
from quire.worker.models.library.attention import NAME, Calls
from quire.worker.models.library.layers import flat
from quire.worker.specs.library.spec import LibraryLinear
from quire.worker.weights.parts import whole


class Turns:
    """The layers' parts of the last product, each of which is taken once: whoever asks first has it made.

    A layer that is asked with another tensor than the others has a product of its own made: then it is one too many,
    and still the right one.
    """

    def __init__(self, product: Callable[[torch.Tensor], torch.Tensor], widths: list[int]) -> None:
        """`product`: [T, inputs] -> [T, outputs], those of all layers, so many of each."""
        self._product, self._widths = product, widths
        self._read: torch.Tensor | None = None
        self._left: dict[int, torch.Tensor] = {}

    def take(self, place: int, x: torch.Tensor) -> torch.Tensor:
        """x [..., inputs] -> [..., outputs] of a layer, which lie in rows of all of them."""
        if x is not self._read or place not in self._left:
            made = self._product(flat(x))
            parts = torch.split(made.view(*x.shape[:-1], made.shape[-1]), self._widths, -1)
            self._read, self._left = x, dict(enumerate(parts))
        part = self._left.pop(place)
        if not self._left:
            self._read = None
        return part


class InTurn(nn.Module):
    """In the place of one of the layers."""

    def __init__(self, turns: Turns, place: int) -> None:
        super().__init__()
        self.turns, self.place = turns, place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.turns.take(self.place, x)


class JoinedLinear(Linear):
    """The matrices of several layers, of which each rank holds its share of every one, or all."""

    def __init__(self, context: BuildContext, layers: Mapping[str, LibraryLinear]) -> None:
        """`layers`: by their names, which ranks share alike. Raises ModelError."""
        first = next(iter(layers.values()))
        outputs = tuple(
            (name, context.share(name, one.outputs) if one.dealt else whole(one.outputs))
            for name, one in layers.items()
        )
        super().__init__(context, outputs, whole(first.inputs), first.bias)
        turns = Turns(self.product, [run.length for _, run in outputs])
        self.places = {name: InTurn(turns, place) for place, name in enumerate(layers)}
        """Modules for the places of the layers; no children of this one."""


class Gated(nn.Module):
    """A gated block of the library's: `last(gate(first) * second)`, whose first two layers are joined."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> the same shape"""
        joined, last, kind = self.__dict__["gated"]
        out: torch.Tensor = last.product(gated_activation(joined.product(flat(x)), kind))
        return out.view(*x.shape[:-1], out.shape[-1])


class Attends(nn.Module):
    """Attention of the library's that is nothing but three joined layers, rotated heads and a layer behind them."""

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], **rest: Any
    ) -> tuple[torch.Tensor, Any]:
        """[1, T, hidden] -> the same shape; cosines and sines [1, T, head_dim]."""
        own: Any = self
        calls: Calls = self.__dict__[NAME]
        if own.config._attn_implementation != NAME or calls.looks_ahead:
            given = {"hidden_states": hidden_states, "position_embeddings": position_embeddings}
            found: tuple[torch.Tensor, Any] = super().forward(**given, **rest)
            return found
        joined, last = self.__dict__["attends"]
        rule = AttentionRule(float(own.scaling), getattr(own, "sliding_window", None))
        cos, sin = calls.angles_of(*position_embeddings)
        out = last.product(calls.mix(joined.product(flat(hidden_states)), cos, sin, rule, None))
        return out.view(*hidden_states.shape[:-1], out.shape[-1]), None


def put_attention(block: nn.Module, joined: Linear, last: Any) -> None:
    """Let our kernels compute such attention from its projections on."""
    block.__dict__["attends"] = joined, last
    block.__class__ = type(type(block).__name__, (Attends, type(block)), {})


def put_gate(block: nn.Module, joined: Linear, last: Any, kind: Gate) -> None:
    """Let our kernel compute a block that is nothing else. It keeps its class."""
    block.__dict__["gated"] = joined, last, kind
    block.__class__ = type(type(block).__name__, (Gated, type(block)), {})
