"""The kinds of parts of a chat that are no text."""

from typing import Literal

from quire.proto.api import ImagePart, VideoPart

MediaKind = Literal["image", "video"]
MediaPart = ImagePart | VideoPart


def kind_of(part: MediaPart) -> MediaKind:
    """The kind of a part."""
    return "video" if isinstance(part, VideoPart) else "image"
