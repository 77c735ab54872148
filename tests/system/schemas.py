"""200 JSON Schemas whose outputs are short: every kind of thing a client asks for, one by one and together."""

from itertools import product
from typing import Any

Schema = dict[str, Any]

BOOL: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
WORD: Schema = {"type": "string", "maxLength": 8}
SMALL: Schema = {"type": "integer", "minimum": -99, "maximum": 99}
AGE: Schema = {"type": "integer", "minimum": 0, "maximum": 120}
SCALARS: list[Schema] = [BOOL, NULL, WORD, SMALL, {"const": "fixed"}, {"enum": ["a", "b", "c"]}]


def closed(properties: dict[str, Schema], **more: Any) -> Schema:
    """An object of these properties, all of them required unless `required` says otherwise."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more,
    }  # fmt: skip


def some(items: Schema, most: int = 3, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def numbers() -> list[Schema]:
    bounds = [(0, 9), (-5, 5), (100, 999), (-1000, -1), (0, 0), (7, 12345), (-123, 4567)]
    return [
        *({"type": "integer", "minimum": low, "maximum": high} for low, high in bounds),
        *({"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 2} for low, high in bounds),
        *({"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": step} for step in (2, 3, 4, 5, 7, 10, 25)),
        *({"type": "number", "minimum": low, "maximum": high, "multipleOf": 0.25} for low, high in ((0, 1), (-2, 10))),
        {"type": "number", "enum": [0.5, 1.5, -2.25]},
    ]


def strings() -> list[Schema]:
    patterns = [
        "^[a-z]{3}$", "^[A-Z][a-z]{1,6}$", "^[0-9]{4}-[0-9]{2}$", "^(cat|dog|bird)$", "^[a-f0-9]{8}$",
        "^v[0-9]\\.[0-9]$",
        "^[^0-9]{2,5}$", "^(ab){1,3}$", "^\\d{3}$", "^[äöü]{2}$", "^x?y?z$", "^#[0-9A-F]{6}$",
        "^(0|[1-9][0-9]{0,2})$", "^\\S{1,4}$", "^[\\w-]{2,6}$", "^(true|false)$",
    ]  # fmt: skip
    formats = ["date", "time", "date-time", "uuid", "ipv4", "duration"]
    return [
        *({"type": "string", "maxLength": most} for most in (0, 1, 5, 20)),
        *({"type": "string", "minLength": least, "maxLength": least + 3} for least in (1, 4, 9)),
        *({"type": "string", "pattern": pattern} for pattern in patterns),
        *({"type": "string", "format": name} for name in formats),
    ]


def fixed() -> list[Schema]:
    constants: list[Any] = [
        "word", "", 17, -3, 2.5, True, False, None, "naïve café", "日本語", "🙂🙃",
        'quote " and \\ slash', "line\nbreak",
        [], [1, "two", None], {"a": 1}, {"nested": {"list": [1, [2, [3]]]}}, {"ключ": "значение"},
    ]  # fmt: skip
    return [
        *({"const": constant} for constant in constants),
        {"enum": ["red", "green", "blue"]},
        {"enum": [1, "1", None, True, [1], {"one": 1}]},
        {"enum": ["Ж", "β", "γδ", "𝄞"]},
        {"enum": [f"option {number}" for number in range(300)]},
        {"enum": ["a", "aa", "aaa", "aaaa"]},
        {"type": "string", "enum": ["yes", "no"]},
    ]


def arrays() -> list[Schema]:
    return [
        *(some(item) for item in SCALARS),
        *(some(SMALL, most, least) for least, most in ((0, 0), (1, 1), (2, 5), (5, 5), (0, 1), (3, 4), (8, 8))),
        *(some(some(item, 2), 2) for item in (BOOL, SMALL, WORD)),
        some(closed({"x": SMALL, "y": SMALL}), 2, 1),
        {"type": "array", "prefixItems": [SMALL, WORD], "items": False, "minItems": 2},
        {"type": "array", "prefixItems": [BOOL], "items": SMALL, "minItems": 2, "maxItems": 4},
        {"type": "array", "prefixItems": [BOOL, NULL, SMALL], "items": False},
        {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 3, "maxItems": 3},
        {"type": "array", "items": False},
    ]


def objects() -> list[Schema]:
    flat = [closed({"value": item}) for item in SCALARS]
    pairs = [closed({"first": one, "second": two}) for one, two in product(SCALARS[:4], SCALARS[1:])]
    optional = [closed({"a": SMALL, "b": WORD, "c": BOOL}, required=chosen) for chosen in ([], ["b"], ["a", "c"])]
    return [
        *flat,
        *pairs,
        *optional,
        closed({}),
        closed({"outer": closed({"middle": closed({"inner": closed({"value": SMALL})})})}),
        closed({"名前": WORD, "возраст": SMALL, "clé": BOOL, "🙂": NULL}),
        closed({'with "quotes"': BOOL, "with\\slash": BOOL, "with space": BOOL, "": BOOL}),
        closed({f"field_{number}": BOOL for number in range(30)}),
        closed({"list": some(closed({"id": SMALL, "tags": some(WORD, 2)}), 2)}),
        {"type": "object", "additionalProperties": SMALL, "maxProperties": 2},
        {**closed({"a": BOOL}), "additionalProperties": SMALL, "maxProperties": 2},
        {"type": "object", "patternProperties": {"^k[0-9]$": BOOL}, "additionalProperties": False, "maxProperties": 2},
    ]  # fmt: skip


def unions() -> list[Schema]:
    return [
        *({"anyOf": [one, two]} for one, two in ((BOOL, NULL), (SMALL, WORD), (WORD, NULL), (some(BOOL, 2), BOOL))),
        *({"type": [one, "null"], "maxLength": 5, "maximum": 9, "minimum": 0} for one in ("string", "integer")),
        {"type": ["boolean", "null", "string"], "maxLength": 3},
        {"anyOf": [closed({"kind": {"const": "circle"}, "radius": SMALL}), closed({"kind": {"const": "point"}})]},
        {"oneOf": [closed({"cat": BOOL}), closed({"dog": BOOL})]},
        {"oneOf": [SMALL, WORD, NULL]},
        {"oneOf": [{"const": 1}, {"const": "one"}]},
        closed({"value": {"anyOf": [SMALL, WORD, some(SMALL, 2), closed({"deep": BOOL})]}}),
        some({"anyOf": [BOOL, SMALL, NULL]}, 4, 2),
        {"allOf": [closed({"a": SMALL, "b": BOOL}), {"type": "object", "required": ["a"]}]},
        {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 8}]},
        {"allOf": [{"type": "string", "maxLength": 6}, {"minLength": 2}]},
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 3}, {"type": "integer", "minimum": 10, "maximum": 13}]},
        closed({"status": {"enum": ["ok", "error"]}, "detail": {"anyOf": [WORD, NULL]}}),
    ]  # fmt: skip


def references() -> list[Schema]:
    definitions = {"word": WORD, "small": SMALL, "pair": closed({"x": {"$ref": "#/$defs/small"}})}
    chain = {"link": closed({"id": {"enum": [1, 2]}, "next": {"anyOf": [NULL, {"$ref": "#/$defs/link"}]}})}
    tree = {"tree": closed({"leaf": BOOL, "left": {"$ref": "#/$defs/side"}, "right": {"$ref": "#/$defs/side"}})}
    side = {"side": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}
    return [
        {"$defs": definitions, "$ref": "#/$defs/small"},
        {"$defs": definitions, "$ref": "#/$defs/pair"},
        {"definitions": {"flag": BOOL}, **closed({"on": {"$ref": "#/definitions/flag"}})},
        {"$defs": definitions, **closed({"a": {"$ref": "#/$defs/word"}, "b": {"$ref": "#/$defs/pair"}})},
        {"$defs": definitions, **some({"$ref": "#/$defs/pair"}, 2)},
        {"$defs": chain, "$ref": "#/$defs/link"},
        {"$defs": chain, **closed({"head": {"$ref": "#/$defs/link"}})},
        {"$defs": tree | side, "$ref": "#/$defs/tree"},
        closed({"value": SMALL, "parent": {"anyOf": [NULL, {"$ref": "#"}]}}),
        {"$defs": {"nest": {"anyOf": [SMALL, some({"$ref": "#/$defs/nest"}, 2)]}}, "$ref": "#/$defs/nest"},
        {"$defs": {"a/b": BOOL, "c~d": NULL}, **closed({"p": {"$ref": "#/$defs/a~1b"}, "q": {"$ref": "#/$defs/c~0d"}})},
    ]  # fmt: skip


def records() -> list[Schema]:
    """What applications ask for."""
    address = closed({"street": WORD, "number": SMALL, "city": {"enum": ["Bern", "Zürich", "Genève"]}})
    call = closed({"name": {"enum": ["search", "open"]}, "arguments": closed({"query": WORD})})
    return [
        closed({"name": WORD, "age": AGE, "email": {"anyOf": [WORD, NULL]}}),
        closed({"person": closed({"name": WORD, "address": address}), "active": BOOL}),
        closed({"sentiment": {"enum": ["positive", "negative", "neutral"]}, "score": AGE}),
        closed({"calls": some(call, 2, 1)}),
        closed({"title": WORD, "tags": some({"enum": ["news", "sport", "art"]}, 3), "draft": BOOL}),
        closed({"matrix": some(some(SMALL, 2, 2), 2, 2)}),
        closed({"date": {"type": "string", "format": "date"}, "at": {"type": "string", "format": "time"}}),
        closed({"answer": {"enum": ["A", "B", "C", "D"]}, "sure": BOOL}, title="Quiz", description="One answer."),
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **closed({"x": SMALL, "y": SMALL})},
        closed({"id": {"type": "string", "format": "uuid"}, "parts": some(closed({"n": SMALL}), 2)}),
    ]  # fmt: skip


def nested() -> list[Schema]:
    """Every scalar at several depths of objects and arrays."""
    found = []
    for depth, scalar in product((2, 4, 6, 8), SCALARS):
        schema = scalar
        for level in range(depth):
            schema = closed({f"l{level}": schema}) if level % 2 else some(schema, 1, 1)
        found.append(schema)
    return found


FAMILIES = (numbers, strings, fixed, arrays, objects, unions, references, records, nested)
SCHEMAS: list[Schema] = [schema for family in FAMILIES for schema in family()]
