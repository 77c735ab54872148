"""JSON objects tagged by `type`: content parts, blocks, items, tools. Kinds that a route does not take are refused."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from quire.frontend.http.decoding.decode import decode
from quire.proto import api
from quire.proto.messages.params import ParameterError

T = TypeVar("T")

SHOWN_NAME = 64
VIDEOS = ("input_video", "video", "video_url")
"""Types that clients may try for a video."""


class _Tag(msgspec.Struct):
    type: str | None = None


class Part(Protocol):
    """A piece of content, as one of the APIs writes it."""

    def part(self, path: str) -> api.ContentPart:
        """`path`: where it stands in the body. Raises `ParameterError`."""
        ...


class TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A piece of text, under the names the three APIs have for it."""

    type: str
    text: str
    cache_control: msgspec.Raw = msgspec.Raw()
    """A hint about caching. Prefixes are cached anyway."""
    citations: None = None
    annotations: list[msgspec.Raw] | None = None
    """Ignored: comes back with earlier answers."""
    logprobs: msgspec.Raw = msgspec.Raw()
    """Ignored: comes back with earlier answers."""

    def part(self, path: str) -> api.TextPart:
        return api.TextPart(self.text)


class RefusalPart(TextPart, kw_only=True, forbid_unknown_fields=True, rename={"text": "refusal"}):
    """A refusal that an assistant gave in place of an answer: to a template it is text."""

    text: str


def tag_of(raw: msgspec.Raw, path: str) -> str:
    """The object's `type`; empty: it has none. Raises `ParameterError`."""
    with path_prefix(path):
        return decode(raw, _Tag).type or ""  # without a copy: a part may be an image of many megabytes


def read_tagged(raw: msgspec.Raw, kinds: Mapping[str, type[T]], path: str, default: str = "") -> T:
    """The object decoded as its `type`. Raises `ParameterError` naming the JSON path, UNSUPPORTED for other types."""
    name = tag_of(raw, path) or default
    if name not in kinds:
        shown = repr(name[:SHOWN_NAME]) if name else "missing"
        remedy = f"use {', '.join(map(repr, kinds))}"
        if name in VIDEOS and "video_url" not in kinds:
            remedy = f"{remedy}; /v1/chat/completions takes videos, as 'video_url'"
        raise ParameterError(f"{path}.type", f"{shown} is not supported by this server; {remedy}", "UNSUPPORTED")
    with path_prefix(path):
        return decode(raw, kinds[name], path)


def read_content(
    content: str | Sequence[msgspec.Raw] | None, kinds: Mapping[str, type[Part]], path: str
) -> str | list[api.ContentPart]:
    """Content of a message: a text, or parts. Raises `ParameterError` for parts of other kinds."""
    if content is None or isinstance(content, str):
        return content or ""
    at = [f"{path}[{index}]" for index in range(len(content))]
    return [read_tagged(raw, kinds, one).part(one) for raw, one in zip(content, at, strict=True)]


def read_text(content: str | Sequence[msgspec.Raw] | None, kinds: Mapping[str, type[TextPart]], path: str) -> str:
    """Content that can be nothing but text, as one. Raises `ParameterError`."""
    return api.ChatMessage("", read_content(content, kinds, path)).text


class path_prefix:
    """Puts `path` before the field of a `ParameterError` that the block raises."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, ParameterError):
            return
        field = self._path if error.field == "body" else f"{self._path}.{error.field}"
        raise ParameterError(field, message_of(error), error.reason) from None


def message_of(error: ParameterError) -> str:
    """Its text without the field."""
    return str(error).removeprefix(f"{error.field}: ")
