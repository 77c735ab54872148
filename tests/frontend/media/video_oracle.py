"""transformers' rules for videos, without torchvision: its modules are imported with an empty one in that place."""

import importlib
import sys
import types
from typing import Any
from unittest import mock

import torch
from transformers.image_utils import SizeDict
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata

from quire.frontend.media.families.videos.glm4v import Glm46Videos, GlmVideos
from quire.frontend.media.families.videos.qwen import Qwen2Videos, Qwen3Videos

PACKAGES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")


def _module(name: str) -> types.ModuleType:
    empty = {at: types.ModuleType(at) for at in (*PACKAGES, f"{PACKAGES[-1]}.functional")}
    with mock.patch.dict(sys.modules, empty):
        return importlib.import_module(f"transformers.models.{name}")


PROCESSORS = {
    Qwen2Videos: _module("qwen2_vl.video_processing_qwen2_vl").Qwen2VLVideoProcessor,
    Qwen3Videos: _module("qwen3_vl.video_processing_qwen3_vl").Qwen3VLVideoProcessor,
}
GLMS = {
    GlmVideos: (
        _module("glm4v.video_processing_glm4v").Glm4vVideoProcessor,
        _module("glm4v.processing_glm4v").Glm4vProcessor,
    ),
    Glm46Videos: (
        _module("glm46v.video_processing_glm46v").Glm46VVideoProcessor,
        _module("glm46v.processing_glm46v").Glm46VProcessor,
    ),
}
"""The library's rules for the videos of GLM, and for their texts."""
INTERN = _module("internvl.video_processing_internvl").InternVLVideoProcessor


class Oracle:
    """What the library does with a video of these settings."""

    def __init__(self, videos: Qwen2Videos | Qwen3Videos) -> None:
        self.videos = videos
        self._processor: Any = object.__new__(PROCESSORS[type(videos)])  # its __init__ wants torchvision
        self._processor.fps = videos.fps
        for name in ("num_frames", "min_frames", "max_frames", "max_video_tokens"):
            setattr(self._processor, name, getattr(videos, name))
        self._processor.temporal_patch_size = videos.frames_per_item
        self._processor.merge_size = videos.merge

    def sample(self, num_frames: int, fps: float) -> list[int]:
        """Without the frame behind the video's end, which Qwen2-VL's rule sometimes names for a rounding."""
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps)
        asked = {"num_frames": self.videos.num_frames} if self.videos.num_frames is not None else {}
        if asked:
            self._processor.fps = None
        return [at for at in self._processor.sample_frames(metadata, **asked).tolist() if at < num_frames]

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Raises `ValueError` for sides that differ too much."""
        bounds = SizeDict(shortest_edge=self.videos.min_pixels, longest_edge=self.videos.max_pixels)
        with mock.patch.object(BaseVideoProcessor, "resize", lambda self, image, size, resample: size):
            size = self._processor.resize(
                torch.empty(1, num_frames, 3, height, width, device="meta"),
                bounds,
                3,
                factor=self.videos.unit,
                temporal_factor=self.videos.frames_per_item,
                cap_pixels_per_frame=self.videos.cap_pixels_per_frame,
            )
        return size.height, size.width

    def text(self, num_frames: int, fps: float, indices: list[int], rows: int, columns: int) -> str:
        """What stands for the video; `rows`, `columns`: patches of a frame."""
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, frames_indices=list(indices))
        grid = torch.tensor([[-(-len(indices) // self.videos.frames_per_item), rows, columns]])
        kind = Qwen3VLProcessor if isinstance(self.videos, Qwen3Videos) else Qwen2_5_VLProcessor
        processor: Any = object.__new__(kind)
        processor.video_processor = self._processor
        processor.video_token = self.videos.placeholder
        processor.vision_start_token, processor.vision_end_token = "<|vision_start|>", "<|vision_end|>"
        return processor.replace_video_token({"video_grid_thw": grid, "video_metadata": [metadata]}, 0)

    def second_per_grid(self, num_frames: int, fps: float, indices: list[int]) -> float:
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, frames_indices=list(indices))
        return self.videos.frames_per_item / metadata.sampled_fps


class GlmOracle:
    """What the library does with a video of GLM."""

    def __init__(self, videos: GlmVideos) -> None:
        self.videos = videos
        of_videos, of_texts = GLMS[type(videos)]
        self._processor: Any = object.__new__(of_videos)
        self._processor.fps, self._processor.max_duration, self._processor.temporal_patch_size = videos.fps, 300, 2
        self._texts: Any = object.__new__(of_texts)
        self._texts.video_processor, self._processor.merge_size = self._processor, videos.merge
        self._texts.image_token = "<|image|>"

    def sample(self, num_frames: int, fps: float) -> list[int]:
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, duration=num_frames / fps)
        found: list[int] = self._processor.sample_frames(metadata).tolist()
        return found

    def size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Raises `ValueError` for sides that differ too much."""
        bounds = SizeDict(shortest_edge=self.videos.min_pixels, longest_edge=self.videos.max_pixels)
        with mock.patch.object(BaseVideoProcessor, "resize", lambda self, image, size, resample: size):
            frames = torch.empty(1, num_frames, 3, height, width, device="meta")
            size = self._processor.resize(frames, bounds, 3, factor=self.videos.unit, temporal_factor=2)
        return size.height, size.width

    def text(self, num_frames: int, fps: float, indices: list[int], rows: int, columns: int) -> str:
        """What stands for the video; `rows`, `columns`: patches of a frame."""
        metadata = VideoMetadata(total_num_frames=num_frames, fps=fps, frames_indices=list(indices))
        grid = torch.tensor([[-(-len(indices) // 2), rows, columns]])
        text: str = self._texts.replace_video_token({"video_grid_thw": grid, "video_metadata": [metadata]}, 0)
        return text
