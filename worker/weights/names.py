"""The map from a checkpoint's tensor names to the parts of parameters they fill: anchored patterns, held as data."""

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class NameRule:
    """`pattern` must match the whole name; its named groups go into `target`."""

    pattern: str
    target: str
    """Path of a part in the model: its module's, its own name if several are merged, then the parameter's name."""

    def apply(self, name: str) -> str | None:
        match = re.fullmatch(self.pattern, name)
        return None if match is None else self.target.format(**match.groupdict())


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

    def target(self, name: str) -> str | None:
        """Path of the part that a tensor fills; None when no rule knows its name."""
        return next((target for rule in self.rules if (target := rule.apply(name)) is not None), None)
