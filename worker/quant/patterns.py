"""Patterns of modules' names in a config, which is anybody's: what they may cost is bounded before they are used.

Matching tries every way through a pattern, at worst, and so the ways are counted: alternatives multiply them by their
number, and all repetitions of one thing share the characters of a name in as many ways as there are combinations.
"""

import re
from collections.abc import Iterable
from math import comb
from re import _constants, _parser  # type: ignore[attr-defined]  # how a pattern reads is asked of who will match it
from typing import Any, Final, NamedTuple

from quire.worker.fields import shown
from quire.worker.weights.parts import ModelError

MOST_PATTERNS: Final = 64
MOST_CHARACTERS: Final = 256
"""Characters of a pattern."""
NAME_CHARACTERS: Final = 48
"""Characters that the name of a model's layer has, at most."""
MOST_WAYS: Final = 1 << 20
"""Ways to try all patterns of a config on a name: some hundredths of a second."""
TOO_LONG: Final = "could take for ever to match; name the modules themselves"

_SINGLE: Final = tuple(getattr(_constants, name) for name in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "GROUPREF"))
_LOOKS: Final = (_constants.ASSERT, _constants.ASSERT_NOT)
_REPEATS: Final = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)


class _Ways(NamedTuple):
    """Ways to match a name: `choices`, each as often as `repeats` can share the name's characters."""

    choices: int
    repeats: int

    @property
    def total(self) -> int:
        return self.choices * comb(NAME_CHARACTERS + self.repeats, self.repeats)


_ONE: Final = _Ways(1, 0)


def compiled(pattern: str, field: str) -> re.Pattern[str]:
    """Raises ModelError for a pattern that does not read, or could take for ever."""
    if len(pattern) > MOST_CHARACTERS:
        raise ModelError(field, f"{shown(pattern)} {TOO_LONG}")
    try:
        found = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ModelError(field, f"{shown(pattern)} is no pattern: {error}; correct config.json") from error
    refuse_slow((found,), field)
    return found


def refuse_slow(patterns: Iterable[re.Pattern[str]], field: str) -> None:
    """Raises ModelError where these patterns together could take for ever."""
    total = 0
    for pattern in dict.fromkeys(patterns):
        ways = _ways(_parser.parse(pattern.pattern))
        total += MOST_WAYS + 1 if ways is None else ways.total
        if total > MOST_WAYS:
            raise ModelError(field, f"{shown(pattern.pattern)} {TOO_LONG}")


def _ways(sequence: Iterable[tuple[Any, Any]]) -> _Ways | None:
    """Ways through one thing after another; None: nothing bounds them."""
    choices, repeats = 1, 0
    for kind, value in sequence:
        inner = _ways_through(kind, value)
        if inner is None:
            return None
        choices, repeats = choices * inner.choices, repeats + inner.repeats
    return _Ways(choices, repeats)


def _ways_through(kind: Any, value: Any) -> _Ways | None:
    if kind in _SINGLE:
        return _ONE
    if kind is _constants.SUBPATTERN:
        return _ways(value[-1])
    if kind in _LOOKS and (inner := _ways(value[-1])) is not None:
        return _Ways(inner.total, 0)  # what it looks at is matched again by what follows
    if kind is _constants.BRANCH:
        parts = [_ways(branch) for branch in value[-1]]
        held = [part for part in parts if part is not None]
        return _Ways(sum(part.choices for part in held), max(part.repeats for part in held)) if held == parts else None
    if kind in _REPEATS and (inner := _ways(value[-1])) is not None:
        if value[1] == 1:
            return _Ways(inner.choices + 1, inner.repeats)
        return _Ways(1, 1) if inner == _ONE else None
    return None
