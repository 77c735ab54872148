"""Half a character in a JSON text: an escape such as \\ud800 without the other one of its pair.

No UTF-8 text can hold it. Clients that cut strings between two UTF-16 units write it; the parser's own words for it
say where the text went on, or that it was cut off.
"""

import re

from quire.frontend.limits.json_scan import STEP, end_of_string

_SIGN = re.compile(rb'["{}\[\]]')
_COLON = re.compile(rb"[ \t\r\n]*:")
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_WHOLE = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4})*+",
    re.DOTALL,
)
MAX_KEY = 64
"""Bytes of a name that a path shows."""


def half_character(raw: bytes) -> tuple[str, str] | None:
    """The path of the first string with half a character, and what is wrong; None where there is no such string."""
    at = 0
    while at < len(raw):
        match = _WHOLE.match(raw, at, at + STEP)
        if match is None or match.end() == at:
            break
        at = match.end()
    half = _HALF.match(raw, at)
    if half is None:
        return None
    shown = half.group().decode()
    message = f"holds {shown} at byte {at} of the JSON text, half of a surrogate pair and no character"
    return _path(raw, at), f"{message}; send both halves, or \\ufffd in its place"


def _path(raw: bytes, position: int) -> str:
    """The path of the value at this position of a JSON text; empty for the whole."""
    keys: list[str | int] = []
    at = 0
    while (match := _SIGN.search(raw, at, position)) is not None:
        if keys and isinstance(keys[-1], int):
            keys[-1] += raw.count(b",", at, match.start())
        at, sign = match.end(), match.group()
        if sign == b'"':
            end = end_of_string(raw, at)
            if keys and isinstance(keys[-1], str) and _COLON.match(raw, end + 1):
                keys[-1] = raw[at : min(end, at + MAX_KEY)].decode(errors="replace")
            at = end + 1
        elif sign in b"{[":
            keys.append("" if sign == b"{" else 0)
        elif keys:
            keys.pop()
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
