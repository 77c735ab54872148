"""Images that stand in the request itself, in base64: as `data:` URLs (RFC 2397), or alone."""

from binascii import a2b_base64

from quire.frontend.limits.work_pool import IsStopped
from quire.frontend.media.refused import MediaRefused

FORM = "write data:image/png;base64,... with the type of your image"
MAX_HEAD_CHARS = 256
PIECE = 64 << 10
"""Characters decoded at once: one call that decodes megabytes would keep the interpreter from the event loop."""
_SPACE = b" \t\n\r\f"


def decode(url: str, max_bytes: int, is_stopped: IsStopped = bool) -> memoryview:
    """The bytes of a `data:image/...;base64,` URL.

    As browsers take it: the alphabet with + and /, spaces and line ends anywhere, padding where it is due or none at
    all; and nothing else. Raises `MediaRefused`.
    """
    comma = url.find(",", 0, MAX_HEAD_CHARS)
    head = url[:comma].lower()
    if comma < 0 or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise MediaRefused(f"is no image in base64; {FORM}")
    return memoryview(decode_base64(url, comma + 1, max_bytes, is_stopped))


def decode_base64(text: str, begin: int, max_bytes: int, is_stopped: IsStopped = bool) -> bytearray:
    """The bytes of base64 from `begin` of a text on. Raises `MediaRefused`, for more than `max_bytes` too."""
    decoded = bytearray()
    rest, is_padded = b"", False
    for start in range(begin, len(text), PIECE):
        if is_stopped():
            break
        piece = rest + _ascii(text[start : start + PIECE])
        if is_padded and piece:
            raise MediaRefused("the base64 goes on behind its padding; send one image")
        whole = len(piece) & ~3
        decoded += _bytes(piece[:whole])
        rest, is_padded = piece[whole:], piece[:whole].endswith(b"=")
        if len(decoded) > max_bytes:
            raise MediaRefused(f"has more than {max_bytes} bytes; send a smaller one")
    if rest:
        decoded += _bytes(rest if is_padded else rest + b"=" * (-len(rest) % 4))
    if not decoded:
        raise MediaRefused("is empty; send the bytes of an image")
    return decoded


def _ascii(text: str) -> bytes:
    try:
        return text.encode("ascii").translate(None, _SPACE)
    except UnicodeEncodeError as error:
        raise MediaRefused("the base64 has a character outside ASCII; use the standard alphabet") from error


def _bytes(text: bytes) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except ValueError as error:
        message = "the base64 is cut off or has a character outside A-Z, a-z, 0-9, + and /; encode the bytes again"
        raise MediaRefused(message) from error
