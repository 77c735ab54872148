"""Frames of a video's file, which OpenCV decodes: only a process that can be killed imports this."""

import math
import os
from functools import cache
from io import BytesIO
from typing import Any

from PIL import Image

from quire.frontend.media.decode.container import CUT
from quire.frontend.media.refused import MediaRefused

MISSING = (
    "files of videos need OpenCV, which this server does not have: install quire[video] there, or send the frames as a "
    "list of pictures"
)
ESTIMATED = ("matroska", "mpegts")
"""Containers that do not say how many frames they have: OpenCV tells how many there may be."""
MAX_FRAMES = 1 << 20
MAX_FPS = 1000.0
PACKETS = -1
"""Value of OpenCV's CAP_PROP_FORMAT by which it reads packets and decodes nothing."""


class FileFrames:
    """The frames of the first video in a file."""

    def __init__(self, data: bytes, demuxer: str, max_pixels: int) -> None:
        """`demuxer`: the one that may open it. Raises `MediaRefused`."""
        self._cv2 = opencv()
        os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = f"threads;1|format_whitelist;{demuxer}|protocol_whitelist;none"
        self._capture = self._open(data)
        self.width, self.height = self._size()
        if not (self.width > 0 and self.height > 0):
            raise MediaRefused("has no pixels; send a video that has some")
        if self.width * self.height > max_pixels:
            shape = f"{self.width} x {self.height}"
            raise MediaRefused(f"has {shape} pixels; at most {max_pixels} are allowed; send a smaller video")
        fps = self._capture.get(self._cv2.CAP_PROP_FPS)
        self.fps = fps if 0 < fps <= MAX_FPS else None
        stated = self._capture.get(self._cv2.CAP_PROP_FRAME_COUNT)
        is_stated = demuxer not in ESTIMATED and math.isfinite(stated) and stated >= 1
        self.num_frames = int(stated) if is_stated else self._count(data)
        if not 1 <= self.num_frames <= MAX_FRAMES:
            raise MediaRefused(f"has {self.num_frames} frames; 1 to {MAX_FRAMES} are read; send another video")
        self._next = 0
        """Index of the frame that is decoded next."""
        self._image: Image.Image | None = None

    def frame(self, index: int) -> Image.Image:
        if index < self._next and self._image is not None:
            return self._image
        while self._next <= index:
            if not self._capture.grab():
                raise MediaRefused(f"ends at frame {self._next} of {self.num_frames}; send it whole")
            self._next += 1
        found, pixels = self._capture.retrieve()
        if not found:
            raise MediaRefused(f"frame {index} does not decode; send the video undamaged")
        if pixels.shape != (self.height, self.width, 3):
            raise MediaRefused(f"changes its size at frame {index}; send frames of one size")
        self._image = Image.fromarray(self._cv2.cvtColor(pixels, self._cv2.COLOR_BGR2RGB))
        return self._image

    def _open(self, data: bytes) -> Any:
        capture = self._cv2.VideoCapture(BytesIO(data), self._cv2.CAP_FFMPEG, [])
        if not capture.isOpened():
            raise MediaRefused("does not open as a video; send MP4, WebM or AVI, whole and undamaged")
        return capture

    def _size(self) -> tuple[int, int]:
        cv2 = self._cv2
        return int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT))

    def _count(self, data: bytes) -> int:
        """The number of frames, by their packets."""
        packets = self._open(data)
        if not packets.set(self._cv2.CAP_PROP_FORMAT, PACKETS):
            raise MediaRefused(CUT)
        number = 0
        while number <= MAX_FRAMES and packets.grab():
            number += 1
        return number


@cache
def opencv() -> Any:
    """The library, with one thread. Raises `MediaRefused` where it is not installed."""
    try:
        import cv2  # it takes a second, and not every server has it
    except ImportError as error:
        raise MediaRefused(MISSING) from error
    cv2.setNumThreads(1)
    return cv2
