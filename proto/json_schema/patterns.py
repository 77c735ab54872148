"""Regular expressions of a JSON Schema without look-around, which the grammar library refuses.

A look-ahead right behind `^` is a condition on the whole text: `^(?=A)B` holds where both `^A` and `^B` do. Where it
must not hold, that is a pattern as well if it is about single characters: `(?!a)`, `(?!.*a)`, `(?!^[ab]*$)`.
"""

import re
from typing import Final

_WORD: Final = "[A-Za-z0-9_'+-]"
_SECONDS: Final = r"\d+([.,]\d+)?S"
_CLOCK: Final = rf"T(\d+H(\d+M)?({_SECONDS})?|\d+M({_SECONDS})?|{_SECONDS})"
_DAYS: Final = r"(\d+Y(\d+M)?(\d+D)?|\d+M(\d+D)?|\d+D)"
EQUAL: Final = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        rf"^({_WORD}+\.)*{_WORD}*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9-]*\.)+[A-Za-z]{{2,}}$"
    ),
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$": (
        rf"^P(\d+W|{_DAYS}({_CLOCK})?|{_CLOCK})$"
    ),
}
"""Patterns that zod writes for `z.email()` and `z.iso.duration()` -> the same languages without look-around."""
REMEDY: Final = "write it without look-around and back-references, or leave it out and check the text yourself"

_ONE: Final = r"(\\[^A-Za-z0-9]|\\[dDsSwW]|[^\\\[\](){}.*+?^$|]|\[\^?\]?(?:\\.|[^\]\\\[])*\])"
_NOT_FIRST: Final = re.compile(_ONE, re.DOTALL)
_NOWHERE: Final = re.compile(rf"\.\*{_ONE}", re.DOTALL)
_NOT_ALL: Final = re.compile(rf"\^?{_ONE}[*+]\$", re.DOTALL)
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|.", re.DOTALL)


def conditions(pattern: str) -> list[str]:
    """Patterns that a text must all meet to meet this one: one, and one for each look-ahead at its beginning."""
    if pattern in EQUAL:
        return [EQUAL[pattern]]
    ahead: list[str] = []
    rest = pattern
    while rest.startswith(("^(?=", "^(?!")) and not _has_choice(rest):
        end = _end_of_group(rest, 1)
        inside = rest[4 : end - 1]
        one = _ahead(inside) if rest[3] == "=" else _not_ahead(inside)
        if one is None:
            break
        ahead.append(one)
        rest = "^" + rest[end:]
    return [rest, *ahead]


def _ahead(inside: str) -> str:
    return f"^({inside})" if _has_choice(inside) else f"^{inside}"


def _not_ahead(inside: str) -> str | None:
    """A pattern of the texts that do not begin so; None where there is no simple one."""
    if match := _NOT_FIRST.fullmatch(inside):
        return rf"^({_other_than(match[1])}(.|\n)*)?$"
    if match := _NOWHERE.fullmatch(inside):
        return rf"^({_other_than(match[1])})*$"
    if match := _NOT_ALL.fullmatch(inside):
        return _other_than(match[1])
    return None


def _other_than(one: str) -> str:
    """A class of all characters but one, or but those of a class."""
    if one.startswith("[^"):
        return f"[{one[2:]}"
    return f"[^{one[1:]}" if one.startswith("[") else f"[^{one}]"


def _end_of_group(pattern: str, start: int) -> int:
    """The index behind the group that begins at `start`; that of the pattern's end where it has none."""
    depth = 0
    for piece in _PIECE.finditer(pattern, start):
        depth += (piece[0] == "(") - (piece[0] == ")")
        if not depth:
            return piece.end()
    return len(pattern)


def _has_choice(pattern: str) -> bool:
    """True for alternatives outside of any group."""
    depth = 0
    for piece in _PIECE.finditer(pattern):
        depth += (piece[0] == "(") - (piece[0] == ")")
        if piece[0] == "|" and not depth:
            return True
    return False


def other_texts(texts: list[str]) -> str:
    """A pattern of all texts but these: what leaves each of their common beginnings."""
    following: dict[str, set[str]] = {"": set()}
    for text in texts:
        for index, character in enumerate(text):
            following.setdefault(text[:index], set()).add(character)
            following.setdefault(text[: index + 1], set())
    ways = []
    for begin, characters in following.items():
        known = "".join(map(_escaped, sorted(characters)))
        away = rf"[^{known}](.|\n)*" if known else r"(.|\n)+"
        ways.append(escaped_text(begin) + (away if begin in texts else f"({away})?"))
    return f"^({'|'.join(ways)})$"


def escaped_text(text: str) -> str:
    """A pattern that finds this text."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return f"\\{character}" if character in r"\^$.|?*+()[]{}-&~/" else character
