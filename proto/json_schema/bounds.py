"""Bounds of numbers, as the grammar library keeps them.

It lets an excluded whole number pass where the other bound is in the same unit (2 as above 2 and below 2.5), rounds
what has more than 15 digits, and refuses the beginnings of a bound (1.5 as below 1.553).
"""

import math
from decimal import Decimal
from typing import Any, Final, TypeGuard

from quire.proto.json_schema.exact_values import DIGITS, EXACT, SMALLEST
from quire.proto.json_schema.walk import Schema, with_parts

_EXCLUSIVE: Final = {"exclusiveMinimum": ("minimum", max, math.inf), "exclusiveMaximum": ("maximum", min, -math.inf)}
_KEYS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
MOST_DIGITS: Final = 12
"""Most digits behind the point of a bound of which the beginnings are allowed one by one."""


def plain_bounds(schema: Schema) -> Schema:
    """The schema with bounds that mean to the library what they say."""
    made = _numeric(schema)
    if made.get("type") == "integer" or not any(_is_number(made.get(key)) for key in _KEYS):
        return made
    for key, (inclusive, nearer, end) in _EXCLUSIVE.items():
        value = made.get(key)
        if _is_number(value) and value % 1 == 0 and 0 <= math.copysign(1, end) * value <= EXACT:
            moved = _next(int(value), end)
            made = {**made, inclusive: nearer(moved, made.get(inclusive, moved))}
            del made[key]
    if "multipleOf" in made or not (beginnings := _beginnings(_numeric(schema))):
        return made
    bounds = {key: made[key] for key in _KEYS if key in made}
    rest = {key: value for key, value in made.items() if key not in bounds}
    return with_parts(rest, {"anyOf": [bounds, {"enum": beginnings}]})


def _numeric(schema: Schema) -> Schema:
    """The schema with the exclusive bounds of draft 4, which are true or false, as numbers."""
    made = dict(schema)
    for key, (inclusive, _, _) in _EXCLUSIVE.items():
        if isinstance(made.get(key), bool) and made.pop(key) and inclusive in made:
            made[key] = made.pop(inclusive)
    return made


def _next(value: int, end: float) -> float:
    """The nearest number of 15 digits that is beyond a whole one."""
    step = Decimal(1).scaleb(Decimal(value).adjusted() + 1 - DIGITS) if value else Decimal(repr(SMALLEST))
    return float(Decimal(value) + step * (1 if end > 0 else -1))


def _beginnings(schema: Schema) -> list[float]:
    """Numbers within the bounds that are written as one of them is, without its last digits."""
    found: set[float] = set()
    for value in (schema.get(key) for key in _KEYS):
        if isinstance(value, float) and math.isfinite(value):
            whole, _, digits = f"{Decimal(repr(value)):f}".partition(".")
            if len(digits) <= MOST_DIGITS:
                found |= {float(f"{whole}.{digits[:count]}") for count in range(1, len(digits))}
    return sorted(value for value in found if value % 1 and _is_within(value, schema))


def _is_within(value: float, schema: Schema) -> bool:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    return bool(low <= value <= high and above < value < below)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
