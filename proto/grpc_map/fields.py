"""Fields of the same name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from quire.proto import api

M = TypeVar("M", bound=Message)


D = TypeVar("D")


@contextmanager
def sendable(field: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise api.RequestError("INVALID_PARAMETER", f"{field}: cannot be sent: {error}", field=field) from error


def set_scalars(message: Message) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields() if not field.is_repeated}


def put_scalars(message: Message, source: object) -> None:
    for field in message.DESCRIPTOR.fields:
        value = None if field.is_repeated else getattr(source, field.name)
        if value is not None:
            with sendable(field.name):
                setattr(message, field.name, value)


def fill(kind: type[M], source: object) -> M:
    """A message whose every field is the attribute of the same name."""
    return kind(**{field.name: getattr(source, field.name) for field in kind.DESCRIPTOR.fields})


def read(kind: type[D], message: Message) -> D:
    """A value from a message whose every field has the name of a parameter of `kind`."""
    values = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        values[field.name] = tuple(value) if field.is_repeated else value
    return kind(**cast("dict[str, Any]", values))
