"""Videos of GLM-4.1V, 4.5V and 4.6V: two frames an item, each item between the bounds of an image, and its time behind.

Frames, sizes and texts are those of transformers' `Glm4vVideoProcessor` and `Glm4vProcessor`, and of `Glm46V…`; but no
more than `max_frames` are read, and 4.6V reads by a rate where one is asked for.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from quire.frontend.media.families.bounds import stated_bounds
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed, processor_name
from quire.frontend.media.families.videos.frame_rate import check_duration
from quire.frontend.media.families.videos.qwen import Qwen3Videos

ROW = "<|image|>"
"""Text of the token that stands for each row of an item."""
MAX_SECONDS = 300
"""Seconds of a video beyond which as many frames are read as of one that lasts so long."""
RATES = ((30, 3.0), (300, 1.0), (2400, 0.5))
"""Seconds of a video -> pairs of frames that 4.6V reads of each, up to the last of them."""
MOST_PAIRED = 640
SETTINGS = ("patch_size", "merge_size", "temporal_patch_size", "fps")
"""Settings that are read besides the bounds: a number of frames, which files state too, counts for nothing there."""
DEFAULTS = {"patch_size": 14, "merge_size": 2, "min_pixels": 112 * 112, "max_pixels": 28 * 28 * 2 * 30_000}
"""Values that are meant where files leave them out."""


class GlmVideos(Qwen3Videos, frozen=True, forbid_unknown_fields=True, tag="glm4v", kw_only=True):
    """The settings of one model. The token of an item's rows is that of images."""

    placeholder: ClassVar[str] = "<|video|>"
    """Text of the token that stands for a video in a rendered chat."""

    def sample(self, num_frames: int, fps: float) -> list[int]:
        """See `QwenVideos`. Raises `MediaRefused` for a video that lasts too long."""
        check_duration(num_frames, fps)
        if self.num_frames is not None:
            return _even(super().sample(num_frames, fps))
        return _even(self._thinned(self._at_rate(num_frames, fps), num_frames))

    def seconds(self, indices: Sequence[int], num_frames: int, fps: float) -> list[float]:
        """The time of the first frame of each item."""
        return [index / fps for index in indices[:: self.frames_per_item]]

    def spelled(self, seconds: Sequence[float]) -> str:
        return "".join(f"<|begin_of_image|>{ROW}<|end_of_image|>{self.written(time)}" for time in seconds)

    def written(self, time: float) -> str:
        """The text of a time."""
        return str(int(time))

    def _at_rate(self, num_frames: int, fps: float) -> list[int]:
        """`fps` frames of each second; of a long video as many as of one of `MAX_SECONDS`, at equal distances."""
        duration, last = num_frames / fps, num_frames - 1
        if duration <= MAX_SECONDS:
            count = max(math.floor(duration * self.fps), 1)
            return [min(last, math.ceil(place * fps / self.fps)) for place in range(count)]
        count = max(int(MAX_SECONDS * self.fps), 1)
        if count >= num_frames:
            return list(range(num_frames))
        return [min(last, math.ceil(second * fps)) for second in np.linspace(0, duration, count).tolist()]

    def _thinned(self, indices: Sequence[int], num_frames: int) -> list[int]:
        """Each once, and no more than `max_frames`."""
        once = list(dict.fromkeys(indices))
        return once if len(once) <= self.max_frames else _spread(0, num_frames - 1, self.max_frames)


class Glm46Videos(GlmVideos, frozen=True, forbid_unknown_fields=True, tag="glm46v", kw_only=True):
    """The settings of one model that reads fewer frames a second of longer videos."""

    is_paced: bool = True
    """It reads by its own `RATES`; else by `fps`, which was asked for."""

    def written(self, time: float) -> str:
        return f"{time:.1f} seconds"

    def with_settings(self, settings: Mapping[str, Any]) -> "Glm46Videos":
        """See `QwenVideos`."""
        found = super().with_settings(settings)
        assert isinstance(found, Glm46Videos)
        return found if settings.get("fps") is None else msgspec.structs.replace(found, is_paced=False)

    def _at_rate(self, num_frames: int, fps: float) -> list[int]:
        if not self.is_paced:
            return super()._at_rate(num_frames, fps)
        duration = num_frames / fps
        longest = min(duration, RATES[-1][0])
        rate = next(pairs for seconds, pairs in RATES if longest <= seconds) * self.frames_per_item
        wanted = max(min(int(longest * rate), MOST_PAIRED), 1)
        if num_frames < wanted:
            return _spread(0, num_frames - 1, wanted)
        found: list[int] = []
        second, step = 0.0, 1 / fps
        for index in range(num_frames):
            if index * step >= second:
                second += 1 / rate
                found.append(index)
                if second >= int(duration):
                    break
        if len(found) < wanted:
            return _spread(found[0], found[-1], wanted)
        return found if len(found) == wanted else _spread(0, num_frames - 1, wanted)


KINDS: dict[str, type[GlmVideos]] = {"Glm4vVideoProcessor": GlmVideos, "Glm46VVideoProcessor": Glm46Videos}
"""`video_processor_type` -> its settings."""


def read_videos(files: ProcessorFiles, fixed: Mapping[str, Any], token: object) -> GlmVideos:
    """The settings of a model's videos; `token`: that of images. `fixed`: see `check_fixed`.

    Raises `ValueError` for a value that nothing here follows.
    """
    settings = files.video
    name = processor_name(settings.get("video_processor_type", ""))
    name = name or f"{files.name.removesuffix('ImageProcessor')}VideoProcessor"
    if name not in KINDS:
        raise ValueError(f"video_processor_type: {name!r:.64} is not known; known here: {', '.join(KINDS)}")
    check_fixed(settings, {**fixed, "max_duration": MAX_SECONDS})
    check_fixed(settings, {key: files.image[key] for key in ("image_mean", "image_std") if key in files.image})
    stated = {key: settings[key] for key in SETTINGS if settings.get(key) is not None}
    return msgspec.convert(DEFAULTS | stated_bounds(settings) | stated | {"video_token_id": token}, KINDS[name])


def _spread(first: int, last: int, count: int) -> list[int]:
    """So many frames from the first to the last."""
    spread: list[int] = np.linspace(first, last, count, dtype=int).tolist()
    return spread


def _even(indices: list[int]) -> list[int]:
    """The same, the last once more where their number is odd."""
    once = list(dict.fromkeys(indices))
    return once + once[-1:] * (len(once) % 2)
