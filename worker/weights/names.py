"""The map from a checkpoint's tensor names to the parameters they fill: anchored patterns, held as data."""

import re
from dataclasses import dataclass, replace
from typing import NamedTuple


class ParameterPart(NamedTuple):
    parameter: str
    """Dotted path in the model."""
    part: str
    """Name of one of its merged tensors; empty when it is one."""


@dataclass(frozen=True, slots=True)
class NameRule:
    """`pattern` must match the whole name; its named groups go into `parameter`, the group `part` names the part."""

    pattern: str
    parameter: str

    def apply(self, name: str) -> ParameterPart | None:
        match = re.fullmatch(self.pattern, name)
        if match is None:
            return None
        groups = match.groupdict()
        return ParameterPart(self.parameter.format(**groups), groups.get("part", ""))


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

    def target(self, name: str) -> ParameterPart | None:
        """The part that a tensor fills; None when no rule knows its name."""
        return next((target for rule in self.rules if (target := rule.apply(name)) is not None), None)
