"""Targets of compressed-tensors: modules by their names, by patterns, or by the class of all linear layers.

Source: the library's utils/match.py.
"""

import re
from dataclasses import dataclass
from typing import Final

from quire.worker.quant.patterns import MOST_PATTERNS, compiled
from quire.worker.weights.parts import ModelError

LINEAR: Final = "Linear"
"""The class by which all linear layers are meant."""
PATTERN: Final = "re:"


@dataclass(frozen=True, slots=True)
class Targets:
    """A list of targets; equal lists are equal."""

    names: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]

    def rank(self, module: str) -> tuple[int, str] | None:
        """0: the module is named itself, 1: by a pattern, 2: by its class; with the target. None: not at all.

        Of the targets that match, the least is the one that counts.
        """
        if module in self.names:
            return 0, module
        if matching := [pattern.pattern for pattern in self.patterns if pattern.match(module)]:
            return 1, min(matching)
        return (2, LINEAR) if LINEAR in self.names else None


def read_targets(targets: tuple[str, ...], field: str) -> Targets:
    """Raises ModelError for a pattern that does not read, and for what could take for ever."""
    patterns = list(dict.fromkeys(target for target in targets if target.startswith(PATTERN)))
    if len(patterns) > MOST_PATTERNS:
        raise ModelError(
            field, f"has {len(patterns)} patterns, and may have {MOST_PATTERNS}; name the modules themselves"
        )
    names = frozenset(target for target in targets if not target.startswith(PATTERN))
    return Targets(names, tuple(compiled(pattern.removeprefix(PATTERN), field) for pattern in patterns))
