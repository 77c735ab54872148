"""The table of families, and the one of a model by the files in its folder.

A family is a tagged struct of a model's settings that says of an image:

- `placeholder`: what stands for it in a rendered chat; `placeholder_id`: the token that stands for each of its rows;
- `items`: by its height and width; `num_tokens`, `num_breaks` of one, by its grid;
- `row_ends`: the tokens behind an item's rows and behind its last row, where it has breaks;
- `resample`: Pillow's number of the filter by which it is resized;
- `max_items`, `max_tokens`, `max_bytes`: what no image exceeds, with all its items;
- `spells`: whether a text of its own stands for its items, and `spelled`: that text, with a `placeholder_id` for each.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quire.frontend.media.families import gemma3, gemma4, glm4v, idefics3, internvl, llava_onevision, pixtral, qwen
from quire.frontend.media.families.bounds import BOUNDS
from quire.frontend.media.families.llava import llava, llava_next
from quire.frontend.media.families.processor_files import ProcessorFiles
from quire.frontend.media.families.videos.gemma4 import Gemma4Videos
from quire.frontend.media.families.videos.glm4v import Glm46Videos, GlmVideos
from quire.frontend.media.families.videos.intern import InternVideos
from quire.frontend.media.families.videos.onevision import OneVisionVideos
from quire.frontend.media.families.videos.qwen import Qwen2Videos, Qwen3Videos
from quire.frontend.media.kind import MediaKind

MediaFamily = (
    qwen.QwenImages
    | glm4v.GlmImages
    | internvl.InternImages
    | llava_onevision.OneVisionImages
    | llava_next.LlavaNextImages
    | llava.LlavaImages
    | pixtral.PixtralImages
    | gemma3.Gemma3Images
    | gemma3.PaliGemmaImages
    | gemma4.Gemma4Images
    | idefics3.IdeficsImages
)
"""A family by any of its rows: the union of their structs."""
VideoRules = Qwen2Videos | Qwen3Videos | GlmVideos | Glm46Videos | InternVideos | OneVisionVideos | Gemma4Videos
"""The settings of a family for videos."""

OF_VIDEOS = ("fps", "num_frames")
"""Settings of a request that are those of videos alone."""
READERS: dict[str, Callable[[ProcessorFiles], MediaFamily | None]] = {
    "Qwen2VLImageProcessor": qwen.read,
    "GotOcr2ImageProcessor": internvl.read,
    "LlavaOnevisionImageProcessor": llava_onevision.read,
    "LlavaNextImageProcessor": llava_next.read,
    "PixtralImageProcessor": pixtral.read,
    "Gemma3ImageProcessor": gemma3.read,
    "Gemma4ImageProcessor": gemma4.read,
    "Gemma4UnifiedImageProcessor": gemma4.read,
    "Glm4vImageProcessor": glm4v.read,
    "Glm46VImageProcessor": glm4v.read,
    "Idefics3ImageProcessor": idefics3.read,
    "SmolVLMImageProcessor": idefics3.read,
}
"""`image_processor_type` -> the reader of the family."""
SHARED: dict[tuple[str, object], Callable[[ProcessorFiles], MediaFamily]] = {
    ("CLIPImageProcessor", llava.MODEL_TYPE): llava.read,
    ("LlavaImageProcessor", llava.MODEL_TYPE): llava.read,
    ("SiglipImageProcessor", llava.MODEL_TYPE): llava.read,
    ("SiglipImageProcessor", gemma3.PALIGEMMA): gemma3.read_paligemma,
}
"""The same of processors that many models have, by `model_type`, too."""


def read_family(
    folder: Path,
    overrides: Mapping[str, Any] = {},
    tokenizer: Path | None = None,
    frames: Mapping[str, Any] = {},
) -> MediaFamily | None:
    """The family of the model in a folder; `overrides`: settings of this server that go before the model's, and
    `frames`, those of its media_io_kwargs; `tokenizer`: folder of its tokenizer.json, where that is another one.

    None: its files say nothing of images, or nothing of a tower that reads them. Raises `ValueError` for settings that
    cannot be followed, and for a tower's images of a family that is not here.
    """
    files = ProcessorFiles.of_model(folder, tokenizer or folder)
    reader = READERS.get(files.name) or SHARED.get((files.name, str(files.config.get("model_type"))))
    if reader is None and files.name and "vision_config" in files.config:
        remedy = f"known here: {', '.join(READERS)}; correct it, or set language_model_only to read text alone"
        raise ValueError(f"{files.image_file}: image_processor_type: {files.name!r:.64} is not known; {remedy}")
    if reader is None:
        return None
    try:
        family = reader(files)
    except ValueError as error:
        raise ValueError(f"{files.image_file}: {error}") from error
    for field, settings in (("mm_processor_kwargs", overrides), ("media_io_kwargs", frames)):
        if family is not None and settings:
            try:
                family = family.with_settings(settings)
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from error
    return family


def template_of(family: MediaFamily) -> str:
    """The chat template of models whose files have none; empty: theirs have."""
    return gemma3.TEMPLATE if isinstance(family, gemma3.PaliGemmaImages) else ""


def of_request(family: MediaFamily, settings: Mapping[str, Any], kind: MediaKind) -> MediaFamily:
    """The family by which the parts of this kind are read of a request with these settings.

    Those of the other kind are as they were, and settings that only they have count for nothing. Raises `ValueError`.
    """
    known = (*(BOUNDS if isinstance(family, qwen.QwenImages) else ()), *(OF_VIDEOS if video_rules(family) else ()))
    for name in settings:
        if name not in known:
            has = f"; it has {', '.join(known)} for requests" if known else ""
            raise ValueError(f"{name}: is no setting of this model{has}; leave it out")
    if isinstance(family, qwen.QwenImages):
        return family.with_settings(settings, (kind,))
    if kind == "image":
        settings = {name: value for name, value in settings.items() if name not in OF_VIDEOS}
    return family.with_settings(settings)


def num_columns(family: MediaFamily, height: int, width: int) -> int:
    """`StoredPart.columns` of an image of so many pixels."""
    return family.num_columns(height, width) if isinstance(family, idefics3.IdeficsImages) else 0


def video_rules(family: MediaFamily) -> VideoRules | None:
    """The settings of a model's videos; None: it takes none."""
    watching = qwen.QwenImages | internvl.InternImages | llava_onevision.OneVisionImages | gemma4.Gemma4Images
    return family.videos if isinstance(family, watching) else None
