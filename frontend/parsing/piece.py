"""The parts that parsers find in a model's text, in the order in which the model wrote them."""

from collections.abc import Iterable
from typing import NamedTuple

from quire.proto.api import Thought, ToolCallDelta

Part = Thought | str | ToolCallDelta
"""Reasoning, text of the answer, or growth of a call."""
RANKS: dict[type, int] = {Thought: 0, str: 1, ToolCallDelta: 2}
"""The order within a run."""


class Piece(NamedTuple):
    """The parts found in a piece of the model's text."""

    parts: tuple[Part, ...] = ()

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Thought))

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> tuple[ToolCallDelta, ...]:
        """One delta for each call that began or grew."""
        return _merged(part for part in self.parts if isinstance(part, ToolCallDelta))

    def runs(self) -> list["Piece"]:
        """The piece as at least one, each of which is reasoning, then text, then calls."""
        if len(self.parts) < 2:
            return [self]
        runs: list[list[Part]] = [[]]
        for part in self.parts:
            if runs[-1] and RANKS[type(part)] < RANKS[type(runs[-1][-1])]:
                runs.append([])
            runs[-1].append(part)
        return [Piece(tuple(run)) for run in runs]


def _merged(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    grown: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        grown.setdefault(delta.index, []).append(delta)
    return tuple(
        ToolCallDelta(index, parts[0].id, parts[0].name, "".join(part.arguments for part in parts))
        for index, parts in grown.items()
    )
