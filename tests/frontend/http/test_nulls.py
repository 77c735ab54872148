"""Null is "not set": in every field of every struct that a route reads, and in all fields of every route at once."""

import asyncio
import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import quire.frontend.http
from quire.frontend.http.decoding.decode import decode
from quire.frontend.http.decoding.ignored import noting
from quire.frontend.http.openapi.table import ROUTES
from quire.proto.messages.params import ParameterError

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BY_HAND: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "hello"},
    "/api/chat": {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": False},
}
"""Bodies that the least one of the type is not: it would be another request."""


def read_structs() -> list[type]:
    """Those that forbid unknown fields: bodies, and all that is read out of their raw parts."""
    for module in pkgutil.walk_packages(quire.frontend.http.__path__, "quire.frontend.http."):
        importlib.import_module(module.name)
    found, pending = [], list(msgspec.Struct.__subclasses__())
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__module__.startswith("quire.frontend.http.") and kind.__struct_config__.forbid_unknown_fields:
            found.append(kind)
    return sorted(set(found), key=lambda kind: (kind.__module__, kind.__name__))


STRUCTS = read_structs()


def least(kind: inspect.Type) -> Any:
    """The smallest value of a type."""
    if isinstance(kind, inspect.UnionType):
        return least(kind.types[0])
    if isinstance(kind, inspect.StructType):
        return least_body(kind.cls)
    if isinstance(kind, inspect.LiteralType):
        return kind.values[0]
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return []
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return int(kind.ge or 1)
    simple = {inspect.StrType: "x", inspect.BoolType: True, inspect.NoneType: None}
    return simple.get(type(kind), {})


def least_body(kind: type) -> dict[str, Any]:
    fields = inspect.type_info(kind).fields
    return {field.encode_name: least(field.type) for field in fields if field.required}


def optional(kind: type) -> Iterator[inspect.Field]:
    return (field for field in inspect.type_info(kind).fields if not field.required)


def plain(value: Any) -> Any:
    """Equal for a raw null and for no raw value."""
    if isinstance(value, msgspec.Raw):
        return None if bytes(value) in (b"", b"null") else bytes(value)
    return value


def read(kind: type, body: dict[str, Any]) -> tuple[list[Any], str]:
    with noting(refuses_unknown=False) as ignored:
        value = decode(json.dumps(body).encode(), kind)
    return [plain(getattr(value, field.name)) for field in inspect.type_info(kind).fields], ignored.header().decode()


@pytest.mark.parametrize(
    "kind", STRUCTS, ids=lambda kind: f"{kind.__module__.removeprefix('quire.frontend.http.')}.{kind.__name__}"
)
def test_null_is_not_set_in_every_field(kind: type) -> None:
    body = least_body(kind)
    for field in optional(kind):
        if isinstance(field.type, inspect.RawType) and field.default != msgspec.Raw():
            continue  # what raw null means there is seen below
        assert read(kind, body | {field.encode_name: None}) == read(kind, body), field.encode_name


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_a_required_field_that_is_null_is_missing(kind: type, refuses: bool) -> None:
    body = least_body(kind)
    for field in inspect.type_info(kind).fields:
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if not field.required or any(isinstance(one, inspect.RawType | inspect.NoneType) for one in kinds):
            continue
        with pytest.raises(ParameterError, match="is missing") as caught, noting(refuses):
            decode(json.dumps(body | {field.encode_name: None}).encode(), kind)
        assert caught.value.field == field.encode_name


def bodies() -> Iterator[tuple[str, dict[str, Any], dict[str, None]]]:
    for path, words in ROUTES.items():
        if words.body is not None and "{" not in path:
            nulls = {field.encode_name: None for field in optional(words.body)}
            yield path.split()[-1], BY_HAND.get(path, least_body(words.body)), nulls


TAG = {"structures": [{"begin": "<a>", "end": "</a>", "schema": {}}], "triggers": ["<a"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "null"}}}
NESTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("/v1/chat/completions", {"type": "structural_tag", **TAG}, {"format": None, "schema": None, "json_schema": None}),
    ("/v1/chat/completions", {"type": "json_object", "schema": SCHEMA}, {"format": None, "triggers": None}),
    ("/v1/completions", {"type": "json_object"}, {"schema": None, "structures": None}),
]
"""Path, a `response_format`, and what says nothing in it."""


@pytest.mark.parametrize(("path", "format", "nulls"), NESTED)
def test_raw_parts_of_a_format_may_be_null(web, path: str, format: dict[str, Any], nulls: dict[str, Any]) -> None:
    async def main() -> None:
        async with web() as w:
            w.answers([75])
            for one in (format, nulls | format):
                body = {"prompt": "hello"} if path.endswith("/completions") and "chat" not in path else CHAT
                answer = await w.client.post(path, json={**body, "seed": 1, "response_format": one})
                assert answer.status_code == 200, answer.text
            first, second = w.scheduler.submits
            assert first.params == second.params

    asyncio.run(main())


def test_all_optional_fields_of_a_route_may_be_null_at_once(web) -> None:
    async def main() -> None:
        async with web() as w:
            w.answers([75])
            for path, body, nulls in bodies():
                plain = await w.client.post(path, json=body)
                nothing = await w.client.post(path, json=nulls | body)
                assert nothing.status_code == plain.status_code, (path, plain.text, nothing.text)
                assert "x-quire-ignored" not in nothing.headers or "x-quire-ignored" in plain.headers, path
                if plain.status_code >= 400:
                    assert nothing.json().keys() == plain.json().keys()

    asyncio.run(main())
