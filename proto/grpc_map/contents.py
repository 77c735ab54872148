"""A protobuf message looked at before any of it becomes a value: fields nobody knows, and how much it holds.

The parser keeps what it does not know without a word, and whatever it keeps costs time and memory on the way to Python.
One pass over the wire format, in short steps of Python, so that other threads come in between.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from quire.proto.messages.params import ParameterError
from quire.proto.stopped import Stopped

MAX_PARTS = 1 << 17
"""Messages and texts in one message: each costs time and a hundred bytes, whatever is in it."""
MAX_VALUES = (1 << 20) + MAX_PARTS
"""All of these and numbers, so that a million token ids fit."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_WIRE_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: VARINT,
    FieldDescriptor.CPPTYPE_INT64: VARINT,
    FieldDescriptor.CPPTYPE_UINT32: VARINT,
    FieldDescriptor.CPPTYPE_UINT64: VARINT,
    FieldDescriptor.CPPTYPE_BOOL: VARINT,
    FieldDescriptor.CPPTYPE_ENUM: VARINT,
    FieldDescriptor.CPPTYPE_DOUBLE: FIXED64,
    FieldDescriptor.CPPTYPE_FLOAT: FIXED32,
    FieldDescriptor.CPPTYPE_STRING: BYTES,
    FieldDescriptor.CPPTYPE_MESSAGE: BYTES,
}
"""No field of ours is of a fixed or zig-zag integer type."""
_NOT_LAST = bytes(range(0x80, 0x100))

Fields = Mapping[int, tuple[str, int, bool, Descriptor | None]]
"""Field number -> name, wire type, whether several values may come in one piece, fields of a message."""


def check_contents(raw: bytes, kind: type[Message], is_stopped: Callable[[], bool] = bool) -> None:
    """`raw` is of `kind`, a request of ours.

    Raises `ParameterError` naming the first field number, at any depth, that this server's contract does not have, or
    for more than the message may hold; `DecodeError` for what is no message; `Stopped` soon after it is.
    """
    _Contents(raw, is_stopped).walk(0, len(raw), cast("Descriptor", kind.DESCRIPTOR), "")


class _Contents:
    def __init__(self, raw: bytes, is_stopped: Callable[[], bool]) -> None:
        self._raw = raw
        self._is_stopped = is_stopped
        self._num_parts = 0
        self._num_values = 0

    def walk(self, at: int, end: int, descriptor: Descriptor, path: str) -> None:
        fields = _fields(descriptor)
        while at < end:
            tag, at = self._varint(at, end)
            number, wire_type = tag >> 3, tag & 7
            name, expected, packs, inner = fields.get(number, ("", -1, False, None))
            if wire_type != expected and not (packs and wire_type == BYTES):
                name = f"{path}field number {number}"
                raise ParameterError(
                    name, "is unknown to this server; remove it or use a matching client", "UNKNOWN_FIELD"
                )
            if wire_type == BYTES:
                size, at = self._varint(at, end)
                if size > end - at:
                    raise DecodeError("truncated")
                if inner is not None:
                    self.walk(at, at + size, inner, f"{path}{name}.")
                self._count(at, at + size, expected)
                at += size
            else:
                self._num_values += 1
                at = self._varint(at, end)[1] if wire_type == VARINT else at + _FIXED[wire_type]
            self._check()

    def _count(self, at: int, end: int, expected: int) -> None:
        if expected == BYTES:
            self._num_parts += 1
            self._num_values += 1
        elif expected == VARINT:  # each number ends in a byte below 128
            self._num_values += len(self._raw[at:end].translate(None, _NOT_LAST))
        else:
            self._num_values += (end - at) // _FIXED[expected]

    def _check(self) -> None:
        if self._num_parts > MAX_PARTS:
            raise ParameterError("request", f"holds more than {MAX_PARTS} messages and texts; send less")
        if self._num_values > MAX_VALUES:
            raise ParameterError("request", f"holds more than {MAX_VALUES} values; send less")
        if self._is_stopped():
            raise Stopped

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise DecodeError("truncated")


@cache
def _fields(descriptor: Descriptor) -> Fields:
    return {
        field.number: (
            field.name,
            _WIRE_TYPES[field.cpp_type],
            field.is_repeated and _WIRE_TYPES[field.cpp_type] != BYTES,
            field.message_type,
        )
        for field in descriptor.fields
    }
