"""Videos whose frames are items of their own, as many as are asked for: what families share that read them so."""

from abc import abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec

from quire.frontend.media.families.videos.frame_rate import check_fps
from quire.proto.messages.media import NO_VIDEO, Grid

NUM_FRAMES = 32
"""Frames that are read where nothing else is said."""
MAX_FRAMES = 768
"""Most frames that are read of a video."""


class CountedVideos(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one model. An item is one frame, which its tower reads as an image."""

    frames_per_item: ClassVar[int] = 1
    max_frames: ClassVar[int] = MAX_FRAMES

    placeholder_id: int
    """The token that stands for each row of a frame."""
    patch: int
    """Pixels of a patch's side."""
    num_frames: int | None = None
    """Frames that are read in all."""
    fps: float | None = None
    """Frames that are read of a second, unless `num_frames` says how many in all."""

    def __post_init__(self) -> None:
        if self.num_frames is not None and not 1 <= self.num_frames <= MAX_FRAMES:
            raise ValueError(f"num_frames: must be from 1 to {MAX_FRAMES}, got {self.num_frames}")
        if self.fps is not None:
            check_fps(self.fps)

    @property
    @abstractmethod
    def max_pixels(self) -> int:
        """Number of pixels that no frame exceeds."""

    @abstractmethod
    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width to which each of so many frames is resized."""

    @abstractmethod
    def spelled(self, seconds: Sequence[float]) -> str:
        """The text that stands for frames of these times in a rendered chat, with a placeholder for each."""

    def sample(self, num_frames: int, fps: float) -> list[int]:
        """The frames to read of a video with so many frames, in their order: at equal distances from the first on."""
        wanted = self.wanted(num_frames, fps)
        return [int(place) for place in array("f", [part * (num_frames / wanted) for part in range(wanted)])]

    def wanted(self, num_frames: int, fps: float) -> int:
        """Number of frames to read of so many."""
        asked: float | None = self.num_frames
        if asked is None:
            asked = NUM_FRAMES if self.fps is None else num_frames / fps * self.fps
        return int(min(max(asked, 1), MAX_FRAMES, num_frames))

    def seconds(self, indices: Sequence[int], num_frames: int, fps: float) -> list[float]:
        """The time of each frame."""
        return [index / fps for index in indices]

    def elapsed(self, seconds: Sequence[float]) -> list[int]:
        """`MediaSpan.elapsed` of the frames: none goes on with another one."""
        return [NO_VIDEO] * len(seconds)

    def grid(self, num_frames: int, height: int, width: int, *, is_last: bool = False) -> Grid:
        """The grid of an item of so many frames of this size."""
        return num_frames, height // self.patch, width // self.patch

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The same with `fps` or `num_frames` that settings name. Raises `ValueError`."""
        changes: dict[str, Any] = {}
        if settings.get("fps") is not None:
            changes |= {"fps": settings["fps"], "num_frames": None}
        if settings.get("num_frames") is not None:
            changes["num_frames"] = settings["num_frames"]
        return msgspec.convert(msgspec.to_builtins(self) | changes, type(self))
