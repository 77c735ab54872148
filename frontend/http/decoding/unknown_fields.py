"""The rule for fields that a route does not know, over HTTP: dropped and named, unless dropping could mislead.

A server that refuses them breaks with every release of every client library. What is null says nothing, in a known
field as well. At the top level a name close to a known one is a typo, and what changes the answer elsewhere must not be
lost in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import msgspec
from msgspec import inspect

from quire.frontend.http.decoding.ignored import note, refuses_unknown
from quire.frontend.http.decoding.misleading import ELSEWHERE, changes_nothing
from quire.proto.messages.params import ParameterError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""Names that are looked at for typos; nothing else is near a field of ours."""
MIN_NEAR = 4
"""Letters of a name from which one wrong letter still leaves it recognisable."""
MAX_SHOWN = 64
"""Most bytes of a value that is shown."""


def drop_unknown(raw: bytes, kind: Any, path: str) -> bytes:
    """The JSON text without the fields that `kind` has no place for, which are noted, and without nulls that it has no
    place for. Linear in the text.

    `path`: where the text stands in the body, empty for the body itself. Raises `ParameterError` for a field of the
    body that is likely a typo, or that would change the answer; msgspec's errors for what is no JSON.
    """
    shape = _shape(kind)
    return raw if shape is None else shape.pruned(raw, path)


class _Struct:
    """A JSON object with these fields."""

    begin = b"{"

    def __init__(self, kind: inspect.StructType) -> None:
        self._kind = kind

    @cached_property
    def _fields(self) -> dict[str, _Shape | None]:
        """Made when an object comes: a struct may hold itself."""
        return {field.encode_name: _shape_of(field.type) for field in self._kind.fields}

    @cached_property
    def _near(self) -> dict[str, str]:
        return {variant: name for name in self._fields for variant in _variants(name)}

    @cached_property
    def _never_null(self) -> set[str]:
        """Fields that are unset where they are null: no null is a value of theirs."""
        return {field.encode_name for field in self._kind.fields if not _takes_null(field.type)}

    def pruned(self, raw: bytes, path: str) -> bytes:
        if not raw.lstrip().startswith(b"{"):
            return raw
        keeps = refuses_unknown() or getattr(self._kind.cls, "is_closed", False)
        kept: dict[str, msgspec.Raw] = {}
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        for name, value in given.items():
            if name in self._never_null and bytes(value) == b"null":
                continue
            if name in self._fields or keeps:
                shape = self._fields.get(name)
                at = f"{path}.{name}" if path else name
                kept[name] = value if shape is None else msgspec.Raw(shape.pruned(bytes(value), at))
            elif bytes(value) != b"null":
                if not path:
                    self._refuse_what_misleads(name, given)
                note(f"{path}.{name}" if path else name)
        return msgspec.json.encode(kept)

    def _refuse_what_misleads(self, name: str, given: Mapping[str, msgspec.Raw]) -> None:
        def value_of(name: str) -> object:
            return msgspec.json.decode(given[name]) if name in given else None

        if name in ELSEWHERE:
            if changes_nothing(name, value_of(name), value_of):
                return
            value = bytes(given[name])
            shown = f", got {value.decode()}" if len(value) <= MAX_SHOWN else ""
            text = f"would change the answer and is not known to this server{shown}; {ELSEWHERE[name]}"
            raise ParameterError(name, text, "UNSUPPORTED")
        meant = next((self._near[variant] for variant in _variants(name) if variant in self._near), None)
        if meant is not None:
            raise ParameterError(name, f"is unknown to this server; did you mean {meant}?", "UNKNOWN_FIELD")


class _Items:
    """A JSON list, or an object with any names, of such values."""

    def __init__(self, item: _Shape, begin: bytes) -> None:
        self._item = item
        self.begin = begin

    def pruned(self, raw: bytes, path: str) -> bytes:
        if not raw.lstrip().startswith(self.begin):
            return raw
        if self.begin == b"[":
            items = msgspec.json.decode(raw, type=list[msgspec.Raw])
            return msgspec.json.encode([self._of(one, f"{path}[]") for one in items])
        named = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({name: self._of(one, f"{path}.*") for name, one in named.items()})

    def _of(self, raw: msgspec.Raw, path: str) -> msgspec.Raw:
        return msgspec.Raw(self._item.pruned(bytes(raw), path))


class _Either:
    """A value of one of these shapes, of which the first character tells: unions that msgspec takes are such."""

    def __init__(self, shapes: Iterable[_Struct | _Items]) -> None:
        self._by_begin = {shape.begin: shape for shape in shapes}

    def pruned(self, raw: bytes, path: str) -> bytes:
        shape = self._by_begin.get(raw.lstrip()[:1])
        return raw if shape is None else shape.pruned(raw, path)


_Shape = _Struct | _Items | _Either


@cache
def _shape(kind: Any) -> _Shape | None:
    return _shape_of(inspect.type_info(kind))


def _shape_of(kind: inspect.Type) -> _Shape | None:
    """The shape of values of this type; None where they hold no object with fields."""
    shapes = [shape for one in _members(kind) if (shape := _shape_of_one(one)) is not None]
    return _Either(shapes) if len(shapes) > 1 else shapes[0] if shapes else None


def _members(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _takes_null(kind: inspect.Type) -> bool:
    nothing = inspect.NoneType | inspect.AnyType | inspect.RawType
    return any(isinstance(one, nothing) for one in _members(kind))


def _shape_of_one(kind: inspect.Type) -> _Struct | _Items | None:
    if isinstance(kind, inspect.StructType):
        return _struct(kind.cls)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        item, begin = _shape_of(kind.item_type), b"["
    elif isinstance(kind, inspect.DictType):
        item, begin = _shape_of(kind.value_type), b"{"
    else:
        return None
    return None if item is None else _Items(item, begin)


@cache
def _struct(kind: type) -> _Struct:
    """One of each kind, however deep it holds itself."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return _Struct(found)


def _variants(name: str) -> Iterator[str]:
    """The name without case and separators, and with any one letter left out: close names have one of these in common.

    So found are a wrong, missing, added or swapped letter, and another way of joining words.
    """
    if not NAME.fullmatch(name):
        return
    plain = re.sub(r"[_.-]", "", name).lower()
    yield plain
    if len(plain) >= MIN_NEAR:
        yield from (plain[:at] + plain[at + 1 :] for at in range(len(plain)))
