"""The map from a checkpoint's tensor names to the parts of parameters they fill: anchored patterns, held as data."""

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from quire.worker.weights.layout import Layout, side_by_side


class Targets(NamedTuple):
    """The parts that one tensor fills."""

    paths: tuple[str, ...]
    """Path of each in the model: its module's, its own name if several are merged, then the parameter's name."""
    layout: Layout


@dataclass(frozen=True, slots=True)
class NameRule:
    """`pattern` must match the whole name; its named groups go into `target`, the path of a part in the model."""

    pattern: str
    target: str
    parts: tuple[str, ...] = ("",)
    """Parts that one tensor fills: `target` has a {part} for each, and `layout` knows where they lie."""
    layout: Layout = side_by_side

    def apply(self, name: str) -> Targets | None:
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        paths = (self.target.format(**{"part": part, **match.groupdict()}) for part in self.parts)
        return Targets(tuple(paths), self.layout)


@dataclass(frozen=True, slots=True)
class NameMap:
    rules: tuple[NameRule, ...]
    ignored: tuple[str, ...] = ()
    """Patterns of tensors a checkpoint may hold that no parameter needs; they win over the rules."""

    def ignoring(self, *patterns: str) -> "NameMap":
        """The same map, with more names ignored."""
        return replace(self, ignored=(*self.ignored, *patterns))

    def ignores(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def targets(self, name: str) -> Targets | None:
        """The parts that a tensor fills; None when no rule knows its name."""
        return next((targets for rule in self.rules if (targets := rule.apply(name)) is not None), None)
