"""Numbers and patterns of a JSON Schema that the grammar library would change: it computes with doubles, and takes some
classes of characters for larger ones.
"""

import math
import re
from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final

from quire.proto.json_schema.walk import Schema

EXACT = 1 << 53
"""Up to here every integer is a double."""
DIGITS = 15
"""Digits of a fraction that the library tells apart."""
LARGEST = 9 * 10**18
SMALLEST = 1e-20
BOUNDS = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}
"""Keyword -> the direction in which a number may be moved and the schema allows no more than before."""

_OPEN: Final = re.compile(r"\\P(\{[^}]*\}|\w)|\\.|\[\^[\]-]?", re.DOTALL)
"""A negated Unicode class; an escaped character; the beginning of a negated class, with a ] or - that is in it."""


def moved_bound(value: Any, direction: int, path: str) -> Any:
    """A bound that is a double, a little narrower; of those that the library cannot tell from none, the last it can."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if direction * value > LARGEST:
        raise ValueError(f"{path}: numbers beyond 9e18 are not supported; write a smaller one")
    if -direction * value > LARGEST:
        return -direction * LARGEST
    if abs(value) < SMALLEST:
        return direction * SMALLEST if direction * value > 0 else 0
    if isinstance(value, float):
        return _rounded(value, direction)
    if abs(value) <= EXACT:
        return value
    nearest = float(value)
    if (nearest < value) if direction > 0 else (nearest > value):
        nearest = math.nextafter(nearest, direction * math.inf)
    return int(nearest)


def _rounded(value: float, direction: int) -> float:
    """A bound of no more digits than the library tells apart, narrower."""
    exact = Decimal(repr(value))
    if len(exact.as_tuple().digits) <= DIGITS:
        return value
    return float(Context(DIGITS, ROUND_CEILING if direction > 0 else ROUND_FLOOR).create_decimal(exact))


def check_numbers(schema: Schema, path: str) -> None:
    """Raises `ValueError` for a fixed number that is no double: the library would make a neighbour of it."""
    for key in ("const", "enum"):
        for value in _numbers(schema.get(key)):
            if isinstance(value, float):
                if not (SMALLEST <= abs(value) <= LARGEST or value == 0):
                    raise ValueError(f"{path}/{key}: {value} is not supported between 0 and 1e-20 or beyond 9e18")
            elif abs(value) > EXACT and moved_bound(value, 1, f"{path}/{key}") != value:
                raise ValueError(f"{path}/{key}: {value} is not exact beyond 2**53; make it a string")


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)


def exact_patterns(schema: Schema) -> Schema:
    """The schema with its own `pattern` and `patternProperties`, not those below it, rewritten.

    Where a class has all control characters, the library takes it for one of all characters that JSON escapes: within
    `[^"]` it allows the quote, escaped. A class without NUL it takes as it is.
    """
    made = dict(schema)
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = _without_nul(pattern)
    if isinstance(patterns := made.get("patternProperties"), dict):
        made["patternProperties"] = {_without_nul(pattern): value for pattern, value in patterns.items()}
    return made


def _without_nul(pattern: str) -> str:
    return _OPEN.sub(_closed, pattern)


def _closed(found: re.Match[str]) -> str:
    if found[1]:
        return rf"[^\x00\p{found[1]}]"
    if found[0].startswith("\\"):
        return found[0]
    return r"[^\x00\-" if found[0] == "[^-" else rf"{found[0]}\x00"
