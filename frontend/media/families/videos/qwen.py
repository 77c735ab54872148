"""Videos of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: which frames are read, at which size, and what tells their time.

Frames, sizes and texts are those of transformers' `Qwen2VLVideoProcessor` and `Qwen3VLVideoProcessor`, but that both
read two frames a second where nothing else is said: the former then leaves the choice to its caller.
"""

import math
from abc import abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from quire.frontend.media.families.bounds import changed_bounds, stated_bounds
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed, processor_name
from quire.frontend.media.families.qwen_size import check_aspect, enlarged_size, rounded_size
from quire.frontend.media.families.videos.frame_rate import MAX_RATE, check_duration, check_fps
from quire.proto.messages.media import NO_VIDEO, Grid

UNKNOWN_FPS = 24.0
"""Frames a second of a video that does not say it, as in transformers."""
BUDGET_SHARE = 0.9
"""Part of `max_video_tokens` that frames of Qwen2-VL may take."""
FLOOR = 1.05
"""Fewest pixels that are left of a frame by its cap, as a multiple of the bound below."""
SETTINGS = frozenset(
    {
        "patch_size",
        "merge_size",
        "temporal_patch_size",
        "min_frames",
        "max_frames",
        "fps",
        "num_frames",
        "cap_pixels_per_frame",
        "max_video_tokens",
    }
)
"""Settings that are read besides the bounds."""


class QwenVideos(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one model, by the names that its files give them. An item is `frames_per_item` frames."""

    placeholder: ClassVar[str] = "<|video_pad|>"
    """Text of the token that stands for a video in a rendered chat."""

    placeholder_id: int = msgspec.field(name="video_token_id")
    patch: int = msgspec.field(name="patch_size")
    merge: int = msgspec.field(name="merge_size")
    frames_per_item: int = msgspec.field(name="temporal_patch_size", default=2)
    min_pixels: int
    max_pixels: int
    min_frames: int = 4
    max_frames: int = 768
    fps: float = 2.0
    """Frames that are read of a second."""
    num_frames: int | None = None
    """Frames that are read in all; it goes before `fps`."""
    cap_pixels_per_frame: bool = False

    def __post_init__(self) -> None:
        for name in ("patch", "merge", "frames_per_item", "min_pixels", "min_frames", "num_frames"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: must be at least 1, got {value}")
        if self.max_pixels < self.min_pixels:
            raise ValueError(f"min_pixels: {self.min_pixels} exceeds max_pixels, {self.max_pixels}")
        check_fps(self.fps)
        if self.num_frames is not None and self.num_frames > self.max_frames:
            raise ValueError(f"num_frames: {self.num_frames} exceeds the model's most, {self.max_frames}")

    @property
    def unit(self) -> int:
        """Pixels of the side of a token's square."""
        return self.patch * self.merge

    @abstractmethod
    def sample(self, num_frames: int, fps: float) -> list[int]:
        """The frames to read of a video with so many frames, in their order."""

    @abstractmethod
    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width to which each of so many frames is resized. Raises `MediaRefused`."""

    @abstractmethod
    def seconds(self, indices: Sequence[int], num_frames: int, fps: float) -> list[float]:
        """The time of each item, whose frames are those at `indices` of the video's `num_frames`.

        Raises `MediaRefused` for a video that lasts too long.
        """

    @abstractmethod
    def spelled(self, seconds: Sequence[float]) -> str:
        """The text that stands for items of these times in a rendered chat, with a placeholder for each."""

    @abstractmethod
    def elapsed(self, seconds: Sequence[float]) -> list[int]:
        """`MediaSpan.elapsed` of items of these times."""

    def grid(self, num_frames: int, height: int, width: int, *, is_last: bool = False) -> Grid:
        """The grid of an item of so many frames of this size."""
        return num_frames, height // self.patch, width // self.patch

    def with_settings(self, settings: Mapping[str, Any]) -> "QwenVideos":
        """The same with bounds, and `fps` or `num_frames`, that settings name. Raises `ValueError`."""
        changes = changed_bounds(settings, self.min_pixels)
        if settings.get("fps") is not None:
            changes |= {"fps": settings["fps"], "num_frames": None}
        if settings.get("num_frames") is not None:
            changes["num_frames"] = settings["num_frames"]
        return msgspec.convert(msgspec.to_builtins(self) | changes, type(self))


class Qwen2Videos(QwenVideos, frozen=True, forbid_unknown_fields=True, tag="qwen2", kw_only=True):
    """Bounds are those of a frame; one run of tokens stands for all items."""

    max_video_tokens: int = 128_000
    tokens_per_second: float | None = None
    """Positions of a second; None: each item is one further than the one before, whatever its time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens_per_second is not None and not 0 < self.tokens_per_second <= MAX_RATE:
            message = f"must be above 0 and at most {MAX_RATE}, got {self.tokens_per_second:g}"
            raise ValueError(f"tokens_per_second: {message}")

    def sample(self, num_frames: int, fps: float) -> list[int]:
        step = self.frames_per_item
        if self.num_frames is not None:
            wanted = min(round(self.num_frames / step) * step, num_frames)
        else:
            most = min(self.max_frames, num_frames) // step * step
            wanted = math.floor(min(max(num_frames / fps * self.fps, self.min_frames), most) / step) * step
        wanted = max(wanted, 1)
        singles = array("f", [index * (num_frames / wanted) for index in range(wanted)])
        return [int(place) for place in singles]

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        check_aspect(height, width)
        most = self.max_pixels
        if self.cap_pixels_per_frame:
            budget = int(self.max_video_tokens * self.unit**2 * BUDGET_SHARE) * self.frames_per_item
            most = max(min(most, budget // num_frames), int(self.min_pixels * FLOOR))
        return rounded_size(height, width, self.unit, self.min_pixels, most)

    def seconds(self, indices: Sequence[int], num_frames: int, fps: float) -> list[float]:
        """Seconds from the first item to each one, were all frames equally far apart."""
        check_duration(num_frames, fps)
        step = self.frames_per_item / (len(indices) / num_frames * fps)
        return [index * step for index in range(-(-len(indices) // self.frames_per_item))]

    def spelled(self, seconds: Sequence[float]) -> str:
        return self.placeholder * len(seconds)

    def elapsed(self, seconds: Sequence[float]) -> list[int]:
        rate = self.tokens_per_second
        later = range(1, len(seconds)) if rate is None else [math.floor(time * rate) for time in seconds[1:]]
        return [NO_VIDEO, *later]


class Qwen3Videos(QwenVideos, frozen=True, forbid_unknown_fields=True, tag="qwen3", kw_only=True):
    """Bounds are those of all frames together; the time of each item stands before it as text."""

    max_video_tokens: int = 768

    def sample(self, num_frames: int, fps: float) -> list[int]:
        wanted = self.num_frames
        if wanted is None:
            asked = num_frames / fps * self.fps
            wanted = int(min(max(asked, self.min_frames), self.max_frames, num_frames))
        step = (num_frames - 1) / max(wanted - 1, 1)
        return [round(index * step) for index in range(wanted)]

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        step, unit = self.frames_per_item, self.unit
        num_frames = max(num_frames, step)  # a single frame is repeated
        most = self.max_pixels
        if self.cap_pixels_per_frame:
            cap = min(self.max_video_tokens * unit**2, most // num_frames)
            most = max(cap, int(self.min_pixels * FLOOR)) * num_frames
        counted = round(num_frames / step) * step
        return enlarged_size(height, width, unit, self.min_pixels, most, num_frames, counted)

    def seconds(self, indices: Sequence[int], num_frames: int, fps: float) -> list[float]:
        """The middle between the first and the last frame of each item."""
        check_duration(num_frames, fps)
        step = self.frames_per_item
        groups = [indices[start : start + step] for start in range(0, len(indices), step)]
        return [(group[0] / fps + group[-1] / fps) / 2 for group in groups]

    def spelled(self, seconds: Sequence[float]) -> str:
        return "".join(f"<{time:.1f} seconds><|vision_start|>{self.placeholder}<|vision_end|>" for time in seconds)

    def elapsed(self, seconds: Sequence[float]) -> list[int]:
        return [NO_VIDEO] * len(seconds)


KINDS: dict[str, type[Qwen2Videos | Qwen3Videos]] = {
    "Qwen2VLVideoProcessor": Qwen2Videos,
    "Qwen3VLVideoProcessor": Qwen3Videos,
}
"""`video_processor_type` -> its settings."""


def read_videos(files: ProcessorFiles, fixed: Mapping[str, Any]) -> Qwen2Videos | Qwen3Videos | None:
    """The settings of a model's videos; None where it has no token for them.

    `fixed`: see `check_fixed`. Raises `ValueError` for a value that nothing here follows.
    """
    settings, config = files.video, files.config
    if config.get("video_token_id") is None:
        return None
    model_type = str(config.get("model_type", ""))
    name = processor_name(settings.get("video_processor_type", ""))
    name = name or f"{'Qwen3' if model_type.startswith('qwen3') else 'Qwen2'}VLVideoProcessor"
    if name not in KINDS:
        raise ValueError(f"video_processor_type: {name!r:.64} is not known; known here: {', '.join(KINDS)}")
    check_fixed(settings, fixed)
    check_fixed(settings, {key: files.image[key] for key in ("image_mean", "image_std") if key in files.image})
    stated = {key: value for key, value in settings.items() if key in SETTINGS and value is not None}
    values = stated_bounds(settings) | stated | {"video_token_id": config["video_token_id"]}
    vision = config.get("vision_config")
    if name == "Qwen2VLVideoProcessor" and model_type == "qwen2_5_vl" and isinstance(vision, Mapping):
        values["tokens_per_second"] = vision.get("tokens_per_second", 4)
    return msgspec.convert(values, KINDS[name])
