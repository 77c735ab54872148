"""Images of GLM-4.1V, 4.5V and 4.6V: as those of Qwen2-VL, but that bounds count an image as the frames of a patch.

Sizes and tokens are those of transformers' `Glm4vImageProcessorPil`, and of `Glm46VImageProcessorPil`, which is alike.
"""

from typing import ClassVar

import msgspec

from quire.frontend.media.families.bounds import stated_bounds
from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.qwen import FIXED, QwenImages
from quire.frontend.media.families.qwen_size import enlarged_size
from quire.frontend.media.families.videos.glm4v import Glm46Videos, GlmVideos, read_videos

MODEL_TYPES = {"glm4v": 151_343, "glm46v": 151_343, "glm4v_moe": 151_363}
"""`model_type` -> the token of images where config.json leaves it out."""
DEFAULTS = {"patch_size": 14, "merge_size": 2, "min_pixels": 112 * 112, "max_pixels": 28 * 28 * 15_000}
"""Values that are meant where files leave them out."""
FRAMES = {"temporal_patch_size": 2}


class GlmImages(QwenImages, frozen=True, forbid_unknown_fields=True, tag="glm4v"):
    """The settings of one model, by the names that its files give them."""

    kind: ClassVar[str] = "glm4v"
    placeholder: ClassVar[str] = "<|image|>"
    """Text of the token that stands for an image in a rendered chat."""
    counted: ClassVar[int] = 2

    videos: GlmVideos | Glm46Videos | None = None
    """Settings of videos."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image of so many pixels is resized: a narrow one first becomes as wide as a
        token. Raises `MediaRefused`."""
        return enlarged_size(height, width, self.unit, self.min_pixels, self.max_pixels, self.counted, self.counted)


def read(files: ProcessorFiles) -> GlmImages:
    """The family of one model. Raises `ValueError` for settings that nothing here follows."""
    image, config = files.image, files.config
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise ValueError(f"image_processor_type: only model_type {known} have it, got {kind!r:.64}")
    check_fixed(image, FIXED | FRAMES)
    stated = {name: image[name] for name in ("patch_size", "merge_size") if name in image}
    token = config.get("image_token_id", MODEL_TYPES[kind])
    images = msgspec.convert(DEFAULTS | stated_bounds(image) | stated | {"image_token_id": token}, GlmImages)
    videos = read_videos(files, FIXED | FRAMES, token)
    if (videos.patch, videos.merge) != (images.patch, images.merge):
        raise ValueError(f"patch_size, merge_size: {videos.patch}, {videos.merge} of videos are not those of images")
    return msgspec.structs.replace(images, videos=videos)
