"""The container of a video's file: its kind by its first bytes, and whether all of it is there."""

from quire.frontend.media.refused import MediaRefused

CUT = "is cut off; send it whole"
EBML = b"\x1a\x45\xdf\xa3"
SEGMENT = b"\x18\x53\x80\x67"
BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
"""Kinds of boxes with which MP4 and MOV begin."""
PICTURES = (b"avif", b"avis")
"""Brands of such files that are pictures, which Pillow reads, where they begin with one of these or of `WIDER`."""
WIDER = (b"mif1", b"msf1")
MAX_BOXES = 1 << 16
MAX_BRANDS = 1 << 10
"""Bytes of a file among which its brands are looked for."""
PACKET = 188
"""Bytes of a packet of MPEG-TS, which begins with `SYNC`."""
SYNC = 0x47


def check_container(data: bytes) -> str:
    """The name of the demuxer that reads a file, by which alone it is opened; empty: it is none that is read here.

    Raises `MediaRefused` for one that is cut off. A name is needed because a playlist, too, opens as a video, and leads
    to other files.
    """
    if data[4:8] in BOXES and not _is_picture(data):
        _check_boxes(data)
        return "mov"
    if data.startswith(EBML):
        _check_segment(data)
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        if 8 + int.from_bytes(data[4:8], "little") > len(data):
            raise MediaRefused(CUT)
        return "avi"
    if len(data) > 2 * PACKET and data[0] == data[PACKET] == data[2 * PACKET] == SYNC:
        if len(data) % PACKET:  # nothing tells of one that is cut between two packets
            raise MediaRefused(CUT)
        return "mpegts"
    return ""


def _is_picture(data: bytes) -> bool:
    """True for AVIF, whose first brand may be that of pictures in general."""
    if data[4:8] != b"ftyp":
        return False
    first, end = data[8:12], min(int.from_bytes(data[:4], "big"), MAX_BRANDS)
    return first in PICTURES or (first in WIDER and any(data[at : at + 4] in PICTURES for at in range(16, end, 4)))


def _check_boxes(data: bytes) -> None:
    """Follow the outermost boxes of MP4: each has its size before its kind."""
    at = 0
    for _ in range(MAX_BOXES):
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size < 8 or at + size == len(data):  # 0: up to the end; less: no box any more
            return
        at += size
        if at > len(data):
            raise MediaRefused(CUT)


def _check_segment(data: bytes) -> None:
    """Find the end of the one segment of Matroska, which may be unknown."""
    at = len(EBML)
    size, length = _number(data, at)
    at += length + size
    if data[at : at + 4] != SEGMENT:
        return
    size, length = _number(data, at + 4)
    if size + 1 != 1 << 7 * length and at + 4 + length + size > len(data):
        raise MediaRefused(CUT)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and its length: as many bytes as the first one has leading zeros, and one."""
    length = 9 - data[at].bit_length() if at < len(data) else 9
    if not 1 <= length <= 8:
        raise MediaRefused(CUT)
    return int.from_bytes(data[at : at + length], "big") & (1 << 7 * length) - 1, length
