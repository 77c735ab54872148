"""The scan of a JSON text before any of it becomes a value: how much it holds, and names given twice.

One pass, linear in the text, in steps so short that other threads and whoever wants it stopped come in between. The
parser comes after and finds what is no JSON: here only strings, brackets, colons and commas count.
"""

import re
from collections.abc import Callable

import msgspec

from quire.proto.messages.params import ParameterError
from quire.proto.stopped import Stopped

MAX_PARTS = 1 << 17
"""Most objects, lists, names and texts of one body: each costs time and a hundred bytes, whatever is in it."""
VALUES_PER_PART = 9
"""Values allowed for each part; they are cheaper. A million token ids fit."""
STEP = 64 << 10
"""Most bytes looked at in one call that holds the interpreter."""
BACKSLASH = 0x5C

_SIGN = re.compile(rb'["{}\[]')
_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:")


def scan(
    raw: bytes, field: str, max_parts: int = MAX_PARTS, is_stopped: Callable[[], bool] = bool, unique: bool = True
) -> None:
    """Raises `ParameterError` on `field` for too much, and on a name given twice; `Stopped` soon after `is_stopped`.

    `unique`: look for names given twice.
    """
    opened: list[set[bytes]] = []
    """Names so far of every open object."""
    at = num_parts = num_values = 0
    while at < len(raw):
        match = _SIGN.search(raw, at, at + STEP)
        end = match.start() if match is not None else min(at + STEP, len(raw))
        num_values += raw.count(b",", at, end)
        at = end
        if match is not None:
            sign = match.group()
            num_parts += sign != b"}"
            at += 1
            if sign == b"{":
                opened.append(set())
            elif sign == b"}":
                if not opened:
                    return  # no JSON: the parser refuses it
                opened.pop()
            elif sign == b'"':
                begin, at = at, end_of_string(raw, at)
                if unique and opened and _COLON.match(raw, at + 1):
                    _add(opened[-1], raw[begin:at], field)
                at += 1
        if num_parts > max_parts:
            raise ParameterError(field, f"holds more than {max_parts} objects, lists, names and texts; send less")
        if num_values > max_parts * VALUES_PER_PART:
            raise ParameterError(field, f"holds more than {max_parts * VALUES_PER_PART} values; send less")
        if is_stopped():
            raise Stopped


def end_of_string(raw: bytes, at: int) -> int:
    """The position of the closing quote of a string whose text begins at `at`; the end of `raw` without one."""
    quote = raw.find(b'"', at)
    if quote < 0:
        return len(raw)
    if raw[quote - 1] != BACKSLASH:
        return quote
    while (match := _TEXT.match(raw, at, at + STEP)) is not None and match.end() > at:
        at = match.end()
    return at


def _add(names: set[bytes], name: bytes, field: str) -> None:
    if BACKSLASH in name:  # the same name can be spelled in several ways
        try:
            name = msgspec.json.decode(b'"' + name + b'"', type=str).encode()
        except msgspec.DecodeError:
            return  # the parser refuses it
    if name in names:
        raise ParameterError(name[:128].decode(errors="replace") or field, "is given twice in the same object")
    names.add(name)
