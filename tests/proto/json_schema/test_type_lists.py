"""Every type of pydantic and zod: its schema compiles, what it allows validates, and pydantic takes it back."""

import base64
import collections
import datetime
import decimal
import enum
import fractions
import ipaddress
import json
import pathlib
import random
import re
import typing
import urllib.parse
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
import typing_extensions
from parts.schema_walks import drawn, is_allowed, matcher, validate
from pydantic import Field, TypeAdapter
from pydantic.networks import AnyUrl, FileUrl, HttpUrl, IPvAnyAddress, IPvAnyInterface, IPvAnyNetwork, RedisDsn

from quire.proto.json_schema import formats
from quire.proto.messages.params import ParameterError

ZOD: dict[str, Any] = json.loads((Path(__file__).parent / "data/zod.json").read_text())


T = typing.TypeVar("T")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(typing.NamedTuple):
    x: int
    y: float = 0.5


class Movie(typing_extensions.TypedDict, total=False):
    name: typing_extensions.Required[str]
    year: int


@pydantic.dataclasses.dataclass
class Song:
    title: str
    seconds: pydantic.PositiveInt = 1


class Closed(pydantic.BaseModel, extra="forbid"):
    a: bool = False


class Open(pydantic.BaseModel, extra="allow"):
    a: bool = False


class Aliased(pydantic.BaseModel):
    given: Annotated[str, Field(alias="givenName", max_length=3)]


class Node(pydantic.BaseModel):
    value: int
    children: Annotated[list["Node"], Field(max_length=1)] = []


class Box(pydantic.BaseModel, typing.Generic[T]):
    inside: T


Price = pydantic.condecimal(max_digits=4, decimal_places=2)
Short = Annotated[str, Field(max_length=3)]
Code = Annotated[str, Field(pattern="^[A-Z]{2}$")]
PYDANTIC: list[Any] = [
    str, int, float, bool, bytes, None, Any, object, list, dict, tuple, set, frozenset, type(None), typing.Hashable,
    datetime.date, datetime.datetime, datetime.time, datetime.timedelta, pydantic.AwareDatetime, pydantic.NaiveDatetime,
    pydantic.FutureDate, pydantic.PastDate, pydantic.FutureDatetime, pydantic.PastDatetime,
    decimal.Decimal, Price, fractions.Fraction, complex, pydantic.ByteSize,
    uuid.UUID, pydantic.UUID1, pydantic.UUID3, pydantic.UUID4, pydantic.UUID5, pydantic.UUID6, pydantic.UUID7,
    pydantic.UUID8, pathlib.Path, pathlib.PurePosixPath, pydantic.FilePath, pydantic.DirectoryPath, pydantic.NewPath,
    pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret[int], pydantic.Json, pydantic.Json[list[int]],
    pydantic.Base64Bytes, pydantic.Base64Str, pydantic.Base64UrlBytes, pydantic.Base64UrlStr, pydantic.ImportString,
    ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network,
    ipaddress.IPv4Interface, ipaddress.IPv6Interface, IPvAnyAddress, IPvAnyInterface, IPvAnyNetwork,
    AnyUrl, HttpUrl, FileUrl, RedisDsn, pydantic.PostgresDsn, pydantic.MongoDsn, pydantic.KafkaDsn, re.Pattern,
    pydantic.PositiveInt, pydantic.NegativeInt, pydantic.NonNegativeInt, pydantic.NonPositiveInt,
    pydantic.PositiveFloat, pydantic.NegativeFloat, pydantic.NonNegativeFloat, pydantic.NonPositiveFloat,
    pydantic.FiniteFloat, pydantic.StrictInt, pydantic.StrictStr, pydantic.StrictBool, pydantic.StrictFloat,
    pydantic.conint(gt=0, lt=100, multiple_of=5), pydantic.confloat(ge=-0.5, lt=99.5),
    pydantic.confloat(multiple_of=0.5), pydantic.constr(min_length=1, max_length=4), Code, Short,
    pydantic.constr(pattern=r"^[0-9]{3}-[a-z]+$"), pydantic.constr(to_lower=True), Level, Literal["a", 1, None, True],
    Literal["one"], list[int], tuple[int, ...], tuple[int, str], tuple[()], set[Level], frozenset[Literal["s", "m"]],
    collections.deque[int], Annotated[list[bool], Field(min_length=1, max_length=3)], typing.Sequence[bool],
    typing.Iterable[int], dict[str, int], dict[Short, int], dict[Code, int],
    dict[Annotated[str, Field(pattern="^[a-z]{2}$", max_length=2)], int], dict[Level, int],
    dict[Literal["a", "b"], int],
    dict[uuid.UUID, bool], dict[pathlib.Path, bool], dict[int, bool], dict[datetime.date, bool], dict[bool, bool],
    dict[str, dict[str, Any]], collections.defaultdict[str, list[int]], collections.OrderedDict[str, int],
    collections.Counter[str], typing.Mapping[str, bool], int | str, int | None, list[int] | dict[str, int] | None,
    Closed | Aliased, Point, Movie, Song, Closed, Open, Aliased, Node, Box[int], Box[Box[str]], typing.Callable,
    Annotated[int, Field(json_schema_extra={"format": "int64"})], pydantic.JsonValue,
]  # fmt: skip


MORE_THAN_THEIR_SCHEMA = (
    pydantic.NaiveDatetime, pydantic.FutureDate, pydantic.PastDate, pydantic.FutureDatetime, pydantic.PastDatetime,
    decimal.Decimal, Price, complex, pydantic.ByteSize, pydantic.Json,
    pydantic.Base64Str, pydantic.Base64UrlStr, pydantic.ImportString, dict[int, bool], dict[bool, bool], RedisDsn,
    AnyUrl, HttpUrl, FileUrl, pydantic.PostgresDsn, pydantic.MongoDsn, pydantic.KafkaDsn,
)  # fmt: skip
"""Types that ask what their schemas do not say."""
UNLIKE_ITEMS = (set, frozenset)
"""Types of items that differ, which cannot be promised for items of any kind."""


def texts_of(schema: Any, ignored: set[str]) -> list[str]:
    rng, start = random.Random(3), matcher(schema, ignored)
    return [text for _ in range(3) if (text := drawn(start, rng, 60)) is not None]


@pytest.mark.parametrize("kind", PYDANTIC, ids=lambda kind: str(kind)[:70])
def test_what_a_type_of_pydantic_allows_it_takes_back(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    try:
        schema = adapter.json_schema()
        other = adapter.json_schema(mode="serialization")
    except pydantic.errors.PydanticInvalidForJsonSchema:
        return
    if kind in UNLIKE_ITEMS:
        with pytest.raises(ParameterError, match="#/uniqueItems: cannot be promised for items that are no small enum"):
            matcher(schema)
        return
    ignored = set[str]()
    for text in texts_of(schema, ignored):
        value = json.loads(text)
        validate(value, schema)
        if not ignored and kind not in MORE_THAN_THEIR_SCHEMA:
            adapter.validate_json(text)
    for text in texts_of(other, ignored) if other != schema else ():
        validate(json.loads(text), other)


@pytest.mark.parametrize("name", ZOD)
def test_what_a_type_of_zod_allows_validates(name: str) -> None:
    ignored = set[str]()
    if name == "never":
        return
    for text in texts_of(ZOD[name], ignored):
        validate(json.loads(text), ZOD[name])


READERS: dict[str, typing.Callable[[str], object]] = {
    "base64": lambda text: base64.b64decode(text, validate=True),
    "base64url": base64.urlsafe_b64decode,
    "byte": lambda text: base64.b64decode(text, validate=True),
    "cidrv4": ipaddress.IPv4Interface,
    "cidrv6": ipaddress.IPv6Interface,
    "date": datetime.date.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "ipv4interface": ipaddress.IPv4Interface,
    "ipv4network": ipaddress.IPv4Network,
    "ipv6": ipaddress.IPv6Address,
    "ipv6interface": ipaddress.IPv6Interface,
    "ipv6network": ipaddress.IPv6Network,
    "ipvanyaddress": ipaddress.ip_address,
    "ipvanyinterface": ipaddress.ip_interface,
    "ipvanynetwork": ipaddress.ip_network,
    "time": datetime.time.fromisoformat,
    "uri": urllib.parse.urlsplit,
    "uri-reference": urllib.parse.urlsplit,
}
KNOWN = sorted({*formats.PATTERNS, *formats.SAME})


@pytest.mark.parametrize("name", KNOWN)
def test_the_texts_of_a_format_are_such_to_others(name: str) -> None:
    rng, start = random.Random(1), matcher({"type": "string", "format": name})
    texts = [json.loads(text) for _ in range(12) if (text := drawn(start, rng, 80)) is not None]
    for text in texts:
        jsonschema.Draft202012Validator.FORMAT_CHECKER.check(text, name)
        READERS.get(name, str)(text)
        if name.startswith("uuid") and name != "uuid":
            assert uuid.UUID(text).version == int(name[-1])


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"], ["2023-02-29", "1900-02-29", "0000-01-01", "2024-04-31"]),
        ("date-time", ["2024-02-29T23:59:59.5+05:30", "0001-01-01T00:00:00Z"], ["2024-01-01T24:00:00Z", "2024-01-01"]),
        ("duration", ["P1Y2M3D", "PT1H30M", "P4W", "P1DT12H"], ["P", "PT", "P1Y1W", "1D"]),
        ("ipv4network", ["10.0.0.0/8", "192.168.1.0/24", "1.2.3.4/32"], ["10.0.0.1/8", "1.2.3.4/33", "1.2.3.256/32"]),
        ("ipvanyaddress", ["1.2.3.4", "::1", "fe80::1"], ["1.2.3", "::1::", "12345::"]),
        ("base64", ["", "YQ==", "YWI=", "YWJj"], ["YQ", "YWJ", "YQ=", "Y Q="]),
        (
            "email",
            ["a.b+c@example.org", "christopher_longfellow1987@mail.example.co.uk"],
            ["a@", "@b", "a b@c", ".a@b", "a..b@c"],
        ),
        (
            "hostname",
            ["example.org", "ec2-54-12-33-11.compute-1.amazonaws.com", "a.b.c.d.e.f"],
            ["-a.b", "a-.b", "a..b", "xn--X", "a_b"],
        ),
        ("json-pointer", ["", "/a~1b/0"], ["a", "/~2"]),
        ("uuid4", ["6fa459ea-ee8a-4ca4-894e-db77e160355e"], ["6fa459ea-ee8a-1ca4-894e-db77e160355e"]),
        (
            "url",
            ["https://example.org/a?b=c#d", "mailto:a@b.c", "redis://:x@localhost:6379/0", "http://[::1]/", "urn:a:b"],
            ["example.org", "//a", "http://a b", "http://a/%2", "http://[::1"],
        ),
    ],
)
def test_a_format_has_the_texts_that_people_write(name: str, right: list[str], wrong: list[str]) -> None:
    start = matcher({"type": "string", "format": name})
    assert [text for text in right if not is_allowed(start, json.dumps(text))] == []
    assert [text for text in wrong if is_allowed(start, json.dumps(text))] == []


@pytest.mark.parametrize(("name", "least", "most"), [("int32", -(2**31), 2**31 - 1), ("uint8", 0, 255)])
def test_a_format_of_integers_bounds_them(name: str, least: int, most: int) -> None:
    start = matcher({"type": "integer", "format": name})
    assert all(is_allowed(start, str(number)) for number in (least, most, 7))
    assert not any(is_allowed(start, str(number)) for number in (least - 1, most + 1))
