"""Text as a terminal may show it."""

_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}
_REORDERING = {0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
"""Marks that change the direction of what follows, and two ends of lines."""
_SURROGATES = range(0xD800, 0xE000)
"""Bytes of file names that are no UTF-8, which no stream takes."""
_ESCAPES = {code: f"\\u{code:04x}" for code in (*_CONTROLS, *_REORDERING, *_SURROGATES)}


def visible(text: str) -> str:
    """The text with control characters escaped as JSON does, but for newlines and tabs.

    A terminal obeys them: a name could clear the screen, forge a line or set the window's title.
    """
    return text.translate(_ESCAPES)
