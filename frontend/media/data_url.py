"""Images and videos that stand in the request itself, in base64: as `data:` URLs (RFC 2397), or alone."""

from binascii import a2b_base64

from quire.frontend.limits.work_pool import IsStopped
from quire.frontend.media.refused import MediaRefused

FORM = "write data:image/png;base64,... with the type of your image"
FORM_OF_VIDEOS = (
    "write data:video/mp4;base64,... with the type of your video, or its frames as data:video/jpeg;base64,F1,F2"
)
FRAMES = "data:video/jpeg;"
"""Beginning of a URL that holds frames of a video, with commas between them."""
MAX_FRAMES = 4096
"""Most frames of a video that come one by one."""
MAX_HEAD_CHARS = 256
PIECE = 64 << 10
"""Characters decoded at once: one call that decodes megabytes would keep the interpreter from the event loop."""
_SPACE = b" \t\n\r\f"


def decode(url: str, max_bytes: int, is_stopped: IsStopped = bool) -> memoryview:
    """The bytes of a `data:image/...;base64,` URL.

    As browsers take it: the alphabet with + and /, spaces and line ends anywhere, padding where it is due or none at
    all; and nothing else. Raises `MediaRefused`.
    """
    head = _head(url)
    if not head.startswith("data:image/"):
        raise MediaRefused(f"is no image in base64; {FORM}")
    return memoryview(decode_base64(url, len(head) + 1, max_bytes, is_stopped))


def decode_video(url: str, max_bytes: int, is_stopped: IsStopped = bool) -> memoryview | tuple[memoryview, ...]:
    """The bytes of a `data:video/...;base64,` URL, or those of each frame of a `data:video/jpeg;base64,` one.

    An image that moves is a video, too: `data:image/gif;base64,`. `max_bytes`: of all frames together. Raises
    `MediaRefused`.
    """
    head = _head(url)
    if not head.startswith(("data:video/", "data:image/")):
        raise MediaRefused(f"is no video in base64; {FORM_OF_VIDEOS}")
    if not head.startswith(FRAMES):
        return memoryview(decode_base64(url, len(head) + 1, max_bytes, is_stopped))
    num_frames = url.count(",", len(head))
    if num_frames > MAX_FRAMES:
        raise MediaRefused(f"has {num_frames} frames; at most {MAX_FRAMES} are allowed, send fewer")
    frames: list[memoryview] = []
    begin, size = len(head) + 1, 0
    for number in range(num_frames):
        end = url.find(",", begin)
        end = len(url) if end < 0 else end
        try:
            frames.append(memoryview(decode_base64(url, begin, max_bytes, is_stopped, end, size)))
        except MediaRefused as error:
            raise MediaRefused(f"frame {number}: {error}") from error
        begin, size = end + 1, size + len(frames[-1])
    return tuple(frames)


def _head(url: str) -> str:
    """A `data:` URL up to its comma, in small letters; empty where it holds no base64."""
    comma = url.find(",", 0, MAX_HEAD_CHARS)
    head = url[:comma].lower()
    return head if comma >= 0 and head.endswith(";base64") else ""


def decode_base64(
    text: str, begin: int, max_bytes: int, is_stopped: IsStopped = bool, end: int | None = None, before: int = 0
) -> bytearray:
    """The bytes of base64 from `begin` of a text to `end`.

    Raises `MediaRefused`, for more than `max_bytes` too, of which `before` are those of frames before this one.
    """
    decoded = bytearray()
    rest, is_padded = b"", False
    end = len(text) if end is None else end
    for start in range(begin, end, PIECE):
        if is_stopped():
            break
        piece = rest + _ascii(text[start : min(start + PIECE, end)])
        if is_padded and piece:
            raise MediaRefused("the base64 goes on behind its padding; send one file")
        whole = len(piece) & ~3
        decoded += _bytes(piece[:whole])
        rest, is_padded = piece[whole:], piece[:whole].endswith(b"=")
        if before + len(decoded) > max_bytes:
            what, remedy = ("with those before it has", "fewer or smaller ones") if before else ("has", "a smaller one")
            raise MediaRefused(f"{what} more than {max_bytes} bytes; send {remedy}")
    if rest:
        decoded += _bytes(rest if is_padded else rest + b"=" * (-len(rest) % 4))
    if not decoded:
        raise MediaRefused("is empty; send the bytes of a file")
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
