"""The decoding of JSON texts by msgspec: the error names the path of a mistake."""

import gc
import re
import threading
from typing import TypeVar

import msgspec

from quire.frontend.errors import not_supported
from quire.frontend.http.decoding.ignored import refuses_unknown
from quire.frontend.http.decoding.unknown_fields import drop_unknown
from quire.frontend.limits.half_character import half_character
from quire.proto.messages.params import ParameterError

T = TypeVar("T")

PATH = " - at `"
MAX_MESSAGE = 1024
MAX_PATH = 128
UNKNOWN = "Object contains unknown field `"
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
_described: set[type] = set()
"""Types that msgspec has described."""
_describing = threading.Lock()
NULL = "`, got `null`"
"""Part of the message for a null where the type has none."""
ONLY_NULL = "Expected `null`"
"""Message for a field declared as None: it is known to us and not supported."""


def decode(raw: bytes | msgspec.Raw, kind: type[T], path: str = "") -> T:
    """The value of a JSON text that was scanned. Raises `ParameterError`.

    Fields that `kind` does not know are dropped by the rule of `unknown_fields`, or refused where the server is told
    so; null is not set. `path`: where the text stands in the body, empty for the body itself.
    """
    if kind not in _described:
        _describe(kind)
    gc.disable()  # many small lists are no garbage, and looking through them again and again takes long
    try:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            is_unknown = str(error).startswith(UNKNOWN) and not refuses_unknown()
            if not is_unknown and NULL not in str(error):
                raise
            return msgspec.json.decode(drop_unknown(bytes(raw), kind, path), type=kind)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    except UnicodeDecodeError:
        raise ParameterError("body", f"is not valid UTF-8 at byte {_first_wrong_byte(bytes(raw))}") from None
    except msgspec.DecodeError as error:
        field, wrong = half_character(bytes(raw)) or ("", f"is not valid JSON: {error}")
        raise ParameterError(field[:MAX_PATH] or "body", wrong) from None
    except RecursionError:
        raise ParameterError("body", "is nested too deeply") from None
    finally:
        gc.enable()


def _describe(kind: type) -> None:
    """Let msgspec describe a type and all within it, which it does at the first decoding and keeps.

    Bodies are decoded in several threads, and msgspec 0.22 crashes in one that finds a description half made.
    """
    with _describing:
        try:
            msgspec.json.decode(b"!", type=kind)
        except msgspec.DecodeError:
            _described.add(kind)


def _first_wrong_byte(raw: bytes) -> int:
    """The parser itself counts from the start of a string."""
    try:
        return len(raw.decode())
    except UnicodeDecodeError as error:
        return error.start


def _wrong(text: str) -> ParameterError:
    """Our error for a message of msgspec."""
    path = ""
    start = text.rfind(PATH)  # names are a client's: no pattern is searched for in them
    if start >= 0 and text.endswith("`"):
        path = text[start + len(PATH) : -1].removeprefix("key in ").removeprefix("$").removeprefix(".")[:MAX_PATH]
        text = text[:start]
    text = text[:MAX_MESSAGE]
    if match := UNKNOWN_FIELD.fullmatch(text):
        name = f"{path}.{match.group(1)}" if path else match.group(1)
        return ParameterError(name[:MAX_PATH], "is unknown to this server; remove it", "UNKNOWN_FIELD")
    if match := MISSING_FIELD.fullmatch(text):
        return ParameterError(f"{path}.{match.group(1)}" if path else match.group(1), "is missing")
    if text.startswith(ONLY_NULL):
        return not_supported(path)
    return ParameterError(path or "body", text[:1].lower() + text[1:])
