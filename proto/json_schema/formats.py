"""The `format` of a JSON Schema: an annotation, which is kept where a regular expression or two bounds can say it.

Each language here is that of its standard or narrower, so that the readers of pydantic, zod and the standard library
take its texts: a day of 29 February is one of a leap year, a network has no bits set behind its prefix.
"""

from typing import Final

_HEX: Final = "[0-9a-fA-F]"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_V4: Final = rf"{_BYTE}(\.{_BYTE}){{3}}"
_LONG_V6: Final = f"{_HEX}{{1,4}}(:{_HEX}{{1,4}}){{7}}"
_NETWORK_V4: Final = rf"({_V4}/32|{_BYTE}\.{_BYTE}\.{_BYTE}\.0/24|{_BYTE}\.{_BYTE}\.0\.0/16|{_BYTE}\.0\.0\.0/8)"
_NETWORK_V6: Final = f"({_LONG_V6}/128|{_HEX}{{1,4}}(:{_HEX}{{1,4}}){{3}}::/64)"
_H16: Final = f"{_HEX}{{1,4}}"
_SHORT_V6: Final = "|".join(f"({_H16}:){{1,{7 - after}}}(:{_H16}){{1,{after}}}" for after in range(1, 7))
_V6: Final = f"({_LONG_V6}|{_SHORT_V6}|({_H16}:){{1,7}}:|:(:{_H16}){{1,7}}|::)"

_LEAP: Final = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR: Final = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_MONTH_AND_DAY: Final = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE: Final = f"({_YEAR}-{_MONTH_AND_DAY}|{_LEAP}-02-29)"
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_TIME: Final = rf"{_CLOCK}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LATER: Final = "T([0-9]{1,5}H([0-9]{1,7}M([0-9]{1,9}S)?)?|[0-9]{1,7}M([0-9]{1,9}S)?|[0-9]{1,9}S)"
_DAYS: Final = "([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)"

_BASE64: Final = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_ATOM: Final = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL: Final = rf"({_ATOM}{{1,64}}|({_ATOM}{{1,20}}\.){{1,2}}{_ATOM}{{1,20}}|({_ATOM}{{1,7}}\.){{3,7}}{_ATOM}{{1,7}})"
_LABEL: Final = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,30}"
_SHORT_LABEL: Final = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,11}"
_HOST: Final = rf"({_LABEL}(\.{_LABEL}){{0,3}}|{_SHORT_LABEL}(\.{_SHORT_LABEL}){{4,9}})"
"""Without the names of other alphabets, xn--..., of which few spellings are right."""
_URL_CHAR: Final = f"([A-Za-z0-9._~!$&'()*+,;=/-]|%{_HEX}{{2}})"
_PATH_CHAR: Final = f"([A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_AUTHORITY: Final = (
    rf"(([A-Za-z0-9._~!$&'()*+,;=:-]|%{_HEX}{{2}})*@)?(\[{_V6}\]|([A-Za-z0-9._~-]|%{_HEX}{{2}})*)(:[0-9]{{1,5}})?"
)
_HIERARCHY: Final = f"(//{_AUTHORITY}(/{_PATH_CHAR}*)*|/?{_PATH_CHAR}({_PATH_CHAR}|/)*)"
_REST: Final = rf"(\?({_PATH_CHAR}|[/?])*)?(#({_PATH_CHAR}|[/?])*)?"
_POINTER: Final = "(/([^/~]|~[01])*)*"

SAME: Final = {
    "guid": "uuid",
    "multi-host-uri": "uri",
    "name-email": "email",
    "url": "uri",
}
"""Formats that have those of another among their texts."""
PATTERNS: Final = {
    "base64": _BASE64,
    "base64url": "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?",
    "byte": _BASE64,
    "cidrv4": f"{_V4}/(3[0-2]|[12]?[0-9])",
    "cidrv6": f"{_V6}/(12[0-8]|1[01][0-9]|[1-9]?[0-9])",
    "cuid": "c[0-9a-z]{24}",
    "cuid2": "[a-z][0-9a-z]{23}",
    "date": _DATE,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P({_DAYS}({_LATER})?|{_LATER}|[0-9]{{1,6}}W)",
    "e164": r"\+[1-9][0-9]{6,14}",
    "email": f"{_LOCAL}@{_HOST}",
    "hostname": _HOST,
    "ipv4": _V4,
    "ipv4interface": f"{_V4}/(3[0-2]|[12]?[0-9])",
    "ipv4network": _NETWORK_V4,
    "ipv6": _V6,
    "ipv6interface": f"{_V6}/(12[0-8]|1[01][0-9]|[1-9]?[0-9])",
    "ipv6network": _NETWORK_V6,
    "ipvanyaddress": f"({_V4}|{_V6})",
    "ipvanyinterface": f"({_V4}/(3[0-2]|[12]?[0-9])|{_V6}/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))",
    "ipvanynetwork": f"({_NETWORK_V4}|{_NETWORK_V6})",
    "json-pointer": _POINTER,
    "jwt": r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
    "ksuid": "[A-Za-z0-9]{27}",
    "mac": f"{_HEX}{{2}}(:{_HEX}{{2}}){{5}}",
    "nanoid": "[A-Za-z0-9_-]{21}",
    "relative-json-pointer": f"(0|[1-9]{{1,4}})(#|{_POINTER})",
    "time": _TIME,
    "ulid": "[0-7][0-9A-HJKMNP-TV-Z]{25}",
    "uri": f"[A-Za-z][A-Za-z0-9+.-]*:{_HIERARCHY}?{_REST}",
    "uri-reference": f"({_URL_CHAR}|[?])*(#({_URL_CHAR}|[?])*)?",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "xid": "[0-9a-v]{20}",
} | {
    f"uuid{version}": f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"
    for version in range(1, 9)
}
"""Format -> a regular expression of its texts, from their first to their last character."""
BOUNDS: Final = {
    f"{sign}int{bits}": (0 if sign else -(1 << (bits - 1)), (1 << (bits - (0 if sign else 1))) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
"""Format of integers -> the least and the greatest."""
TRUE_OF_NUMBERS: Final = frozenset({"decimal", "double", "float", "int", "integer", "number"})
"""Formats that say no more than a type."""


def pattern_of(name: str) -> str | None:
    """The pattern of a format; None where nobody checks it."""
    found = PATTERNS.get(SAME.get(name, name))
    return None if found is None else f"^({found})$"
