"""Fields of the same name, and fields nobody knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quire.proto import api
from quire.proto.params import ParameterError

M = TypeVar("M", bound=Message)


D = TypeVar("D")


def refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Raise `ParameterError` naming the first field number, at any depth, that this server's contract does not have."""
    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]
        name = f"{path}field number {unknown.field_number}"
        raise ParameterError(name, "is unknown to this server; remove it or use a matching client", "UNKNOWN_FIELD")
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else (value,):
                refuse_unknown_fields(inner, f"{path}{field.name}.")


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
