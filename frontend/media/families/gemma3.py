"""Images of Gemma 3 and PaliGemma: all of one size, whatever their aspect, and of as many tokens; those of Gemma 3
stand between two that bound them.

Pixels and texts are those of transformers' `Gemma3ImageProcessorPil` and `Gemma3Processor` without pan and scan, which
they leave out unless asked to cut crops, and of `SiglipImageProcessorPil` and `PaliGemmaProcessor`.
"""

from collections.abc import Mapping
from math import isqrt
from typing import Any, ClassVar

from quire.frontend.media.families.processor_files import ProcessorFiles, check_fixed
from quire.frontend.media.families.squares import Squares
from quire.frontend.media.families.view import Item, View, each_alone

CHANNELS = 3
BILINEAR = 2
"""Pillow's number of the filter that the models were trained with, as files of settings state it."""
FIXED = {"do_resize": True, "resample": BILINEAR}
"""Settings that have one value here."""
OPTIONAL = {"do_pan_and_scan": (None, False), "do_convert_rgb": (None, True)}
"""Settings that files leave open."""
BICUBIC = 3
"""That of PaliGemma."""
MODEL_TYPE = "gemma3"
PALIGEMMA = "paligemma"
TEMPLATE = """\
{%- if messages | length != 1 %}{{ raise_exception('this model answers one message, and knows no turns; send one') }}
{%- endif %}
{%- set content = messages[0]['content'] %}
{%- if content is not string %}
{%- for part in content if part['type'] == 'image' %}{{- '<image>' }}{% endfor %}
{%- endif %}
{{- bos_token }}
{%- if content is string %}{{- content }}{% else %}
{%- for part in content if part['type'] == 'text' %}{{- part['text'] }}{% endfor %}
{%- endif %}
{{- '\\n' }}"""
"""Prompts of PaliGemma, whose files have no template: images, the first token, the text, and a line's end."""
BEGIN, ROW, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


class Gemma3Images(Squares, frozen=True, forbid_unknown_fields=True, tag="gemma3", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = "gemma3"
    placeholder: ClassVar[str] = BEGIN
    """Text of the token that stands for an image in a rendered chat."""
    resample: ClassVar[int] = BILINEAR
    spells: ClassVar[bool] = True
    max_items: ClassVar[int] = 1

    placeholder_id: int
    side: int
    """Pixels of an image's side."""

    def __post_init__(self) -> None:
        if min(self.patch, self.merge, self.side) < 1 or self.side % (self.patch * self.merge):
            message = f"images of {self.side} pixels are not whole squares of {self.merge} patches of {self.patch}"
            raise ValueError(f"size: {message}")

    @property
    def max_tokens(self) -> int:
        """Number of tokens of every image."""
        return self.num_tokens(self.grid(self.side, self.side))

    @property
    def max_bytes(self) -> int:
        """Number of bytes of the pixels of every image."""
        return self.side**2 * CHANNELS

    def items(self, height: int, width: int) -> tuple[Item, ...]:
        """The one item of an image of so many pixels: all of it."""
        return each_alone((View.whole(self.side, self.side),), self.grid)

    def spelled(self, num_items: int) -> str:
        """The text that stands for an image, with a placeholder for its rows."""
        return f"\n\n{BEGIN}{ROW * num_items}{END}\n\n"

    def with_settings(self, settings: Mapping[str, Any]) -> "Gemma3Images":
        """Raises `ValueError` for any setting but pan and scan that is off: all images are of one size."""
        for name, value in settings.items():
            if name != "do_pan_and_scan":
                raise ValueError(f"{name}: is no setting of this model's images, which are all of one size")
            if value not in OPTIONAL[name]:
                raise ValueError(f"{name}: {value!r:.64} is not supported: an image is read as a whole; only false is")
        return self


def read(files: ProcessorFiles) -> Gemma3Images:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(
            f"image_processor_type: only model_type {MODEL_TYPE} has it, got {config.get('model_type')!r:.64}"
        )
    check_fixed(image, FIXED)
    for name, values in OPTIONAL.items():
        if image.get(name) not in values:
            raise ValueError(f"{name}: {image[name]!r:.64} is not supported; only {values[-1]!r} is")
    vision, size = config.get("vision_config") or {}, image.get("size")
    if not isinstance(vision, Mapping) or not isinstance(size, Mapping):
        raise ValueError("size: must have height and width, as vision_config of config.json has image_size")
    side, patch = vision.get("image_size", 224), vision.get("patch_size", 16)
    if (stated := [size.get("height"), size.get("width")]) != [side, side]:
        message = f"is {stated!r:.64}, but config.json has images of {side!r:.64} pixels; download both files again"
        raise ValueError(f"size: {message}")
    length = config.get("mm_tokens_per_image", 256)
    if (stated := files.together.get("image_seq_length", image.get("image_seq_length", 256))) != length:
        raise ValueError(f"image_seq_length: is {stated!r:.64}, but config.json has images of {length!r:.64} tokens")
    if not all(type(one) is int and one > 0 for one in (side, patch, length)) or side // patch < isqrt(length):
        raise ValueError(f"mm_tokens_per_image: {length!r:.64} are not those of {side!r:.64} pixels a side")
    token = config.get("image_token_index", config.get("image_token_id", 262_144))
    if not isinstance(token, int):
        raise ValueError(f"image_token_index: config.json must state a token, got {token!r:.64}")
    family = Gemma3Images(placeholder_id=token, patch=patch, merge=side // patch // isqrt(length), side=side)
    if family.max_tokens != length:
        raise ValueError(f"mm_tokens_per_image: {length} are no square of tokens in images of {side} pixels")
    return family


class PaliGemmaImages(Gemma3Images, frozen=True, forbid_unknown_fields=True, tag="paligemma", kw_only=True):
    """The settings of one model."""

    kind: ClassVar[str] = PALIGEMMA
    placeholder: ClassVar[str] = "<image>"
    resample: ClassVar[int] = BICUBIC
    spells: ClassVar[bool] = False

    def spelled(self, num_items: int) -> str:
        return self.placeholder * num_items

    def with_settings(self, settings: Mapping[str, Any]) -> "PaliGemmaImages":
        """Raises `ValueError` for any setting."""
        for name in settings:
            raise ValueError(f"{name}: is no setting of this model's images, which are all of one size")
        return self


def read_paligemma(files: ProcessorFiles) -> PaliGemmaImages:
    """The family of one model. Raises `ValueError` for settings that are missing, or are not followed here."""
    image, config = files.image, files.config
    check_fixed(image, {"do_resize": True, "resample": BICUBIC})
    if image.get("do_convert_rgb") not in OPTIONAL["do_convert_rgb"]:
        raise ValueError(f"do_convert_rgb: {image['do_convert_rgb']!r:.64} is not supported; only True is")
    vision, size = config.get("vision_config", {"patch_size": 14}), image.get("size")
    if not isinstance(vision, Mapping) or not isinstance(size, Mapping):
        raise ValueError("size: must have height and width, as vision_config of config.json has image_size")
    side, patch = vision.get("image_size", 224), vision.get("patch_size", 16)
    if (stated := [size.get("height"), size.get("width")]) != [side, side]:
        message = f"is {stated!r:.64}, but config.json has images of {side!r:.64} pixels; download both files again"
        raise ValueError(f"size: {message}")
    token = config.get("image_token_index", config.get("image_token_id", 256_000))
    if not all(type(one) is int for one in (side, patch, token)):
        raise ValueError(f"image_token_index: config.json must state whole numbers, got {[token, side, patch]!r:.64}")
    family = PaliGemmaImages(placeholder_id=token, patch=patch, merge=1, side=side)
    if (stated := image.get("image_seq_length", family.max_tokens)) != family.max_tokens:
        message = f"is {stated!r:.64}, but config.json has images of {family.max_tokens} tokens"
        raise ValueError(f"image_seq_length: {message}; download both files again")
    return family
