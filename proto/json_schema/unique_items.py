"""`uniqueItems`: arrays of few values are written out one by one; the grammar library cannot tell items apart."""

from collections.abc import Iterator
from math import comb
from typing import Any

from quire.proto.json_schema.facts import TYPES, SchemaFacts, count_of, key_of
from quire.proto.json_schema.walk import Schema, with_parts

MAX_ITEMS = 10_000
"""Most items of all arrays that are written out for one document: a third of a second to compile."""
MAX_CHARS = 1 << 20
"""Most characters of them."""

_ARRAY = ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems")
_REMEDY = "leave uniqueItems out and drop what comes twice yourself"


class UniqueItems:
    """The arrays of one document, which share a limit."""

    def __init__(self, facts: SchemaFacts) -> None:
        self._facts = facts
        self._num_items = 0
        self._num_chars = 0

    def rewritten(self, schema: Schema, path: str) -> Schema:
        """The schema without the keyword. Raises `ValueError` where its arrays are too many to be written out."""
        if not isinstance(schema["uniqueItems"], bool):
            raise ValueError(f"{path}/uniqueItems: must be true or false")
        types = schema.get("type", sorted(TYPES))
        types = types if isinstance(types, list) else [types]
        if not schema["uniqueItems"] or count_of(schema, "maxItems", 2) <= 1 or "array" not in types:
            return {key: value for key, value in schema.items() if key != "uniqueItems"}
        ways: list[Schema] = [{"enum": self._written(schema, f"{path}/uniqueItems")}]
        if others := [name for name in types if name != "array"]:
            ways.append({"type": others})
        rest = {key: value for key, value in schema.items() if key not in _ARRAY}
        return with_parts(rest, {"anyOf": ways})

    def _written(self, schema: Schema, path: str) -> list[list[Any]]:
        """Its arrays in any order of their items; where these are too many, in that of the values."""
        before = self._num_items, self._num_chars
        try:
            return list(self._arrays(schema, path, in_order=False))
        except ValueError:
            if "prefixItems" in schema or isinstance(schema.get("items"), list):
                raise
            self._num_items, self._num_chars = before
            return list(self._arrays(schema, path, in_order=True))

    def _arrays(self, schema: Schema, path: str, in_order: bool) -> Iterator[list[Any]]:
        prefix, rest = _positions(schema)
        least, most = count_of(schema, "minItems", 0), count_of(schema, "maxItems", len(prefix) + MAX_ITEMS)
        domains = [self._facts.values(one) for one in prefix[:most]]
        if most > len(prefix):
            domains.append(self._facts.values(rest))
        known = [{key_of(value): value for value in domain} for domain in domains if domain is not None]
        if len(known) < len(domains):
            remedy = f"make the items an enum, or {_REMEDY}"
            raise ValueError(f"{path}: cannot be promised for items that are no small enumeration; {remedy}")
        chosen: dict[str, Any] = {}

        def arrays(start: int) -> Iterator[list[Any]]:
            if len(chosen) >= least:
                self._num_items += len(chosen)
                self._num_chars += sum(map(len, chosen))
                yield list(chosen.values())
            self._num_items += 1
            if self._num_items > MAX_ITEMS or self._num_chars > MAX_CHARS:
                raise ValueError(f"{path}: {_too_many(0 if prefix else len(known[-1]))}")
            if len(chosen) < most and known:
                domain = known[min(len(chosen), len(known) - 1)]
                for index, (key, value) in enumerate(domain.items()):
                    if key not in chosen and index >= start:
                        chosen[key] = value
                        yield from arrays(index + 1 if in_order else 0)
                        del chosen[key]

        return arrays(0)


def _positions(schema: Schema) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of all others."""
    items, prefix = schema.get("items", True), schema.get("prefixItems", [])
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return (prefix if isinstance(prefix, list) else []), items


def _too_many(num_values: int) -> str:
    """`num_values`: that each item is one of; 0: it depends."""
    most, total = 0, 2
    while most < num_values and (total := total + comb(num_values, most + 1) * (most + 3)) <= MAX_ITEMS:
        most += 1
    remedy = f"set maxItems to at most {most}, or " if most else ""
    return f"allows too many arrays to tell them apart; {remedy}{_REMEDY}"
