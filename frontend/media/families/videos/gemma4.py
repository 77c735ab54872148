"""Videos of Gemma 4: frames at equal distances, each an image with its time before it.

Frames and texts are those of transformers' `Gemma4VideoProcessor` and `Gemma4Processor`, but that every frame is read
of a video that has fewer than are asked for.
"""

from collections.abc import Sequence
from typing import ClassVar

from quire.frontend.media.families.budget_size import budget_size, check_budget
from quire.frontend.media.families.videos.counted import CountedVideos

BEGIN, ROW, END = "<|image>", "<|video|>", "<image|>"


class Gemma4Videos(CountedVideos, frozen=True, forbid_unknown_fields=True, tag="gemma4", kw_only=True):
    """The settings of one model."""

    placeholder: ClassVar[str] = ROW
    """Text of the token that stands for a video in a rendered chat, and for each row of a frame."""

    merge: int
    """Patches of the side of the square that is one token."""
    max_tokens: int
    """Tokens that no frame exceeds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.max_tokens)

    @property
    def max_pixels(self) -> int:
        return self.max_tokens * (self.patch * self.merge) ** 2

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """See `CountedVideos`."""
        return budget_size(height, width, self.patch * self.merge, self.max_tokens)

    def spelled(self, seconds: Sequence[float]) -> str:
        times = (f"{int(one // 60):02d}:{int(one % 60):02d}" for one in seconds)
        return " ".join(f"{time} {BEGIN}{ROW}{END}" for time in times)
