"""Settings for the images and videos of one request, as vLLM's clients write them."""

from typing import Any, ClassVar

import msgspec

from quire.proto import api
from quire.proto.messages.params import ParameterError

FIELD = r"chat\.media_settings"
NO_LIMIT = -1
"""Value by which vLLM's clients leave a setting of `media_io_kwargs` unset."""
SAMPLED = "frames of a video file are always sampled; leave it out, or send the frames as pictures, which all are read"
SIZE = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Bounds -> their names in `size`, where they count pixels, too."""


class Closed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An object whose unknown fields are refused: they would change pixels elsewhere."""

    is_closed: ClassVar[bool] = True


class PixelSize(Closed, kw_only=True, forbid_unknown_fields=True):
    shortest_edge: int | None = None
    longest_edge: int | None = None


class ProcessorKwargs(Closed, kw_only=True, forbid_unknown_fields=True):
    """`mm_processor_kwargs`."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    size: PixelSize | None = None
    """Another way to write both bounds."""
    fps: float | None = None
    num_frames: int | None = None
    do_sample_frames: bool | None = None
    """True says what is done anyway."""
    min_frames: int | None = None
    """Refused, as `max_frames` is: both are the model's own here."""
    max_frames: int | None = None


class VideoIo(Closed, kw_only=True, forbid_unknown_fields=True):
    """Either may be `NO_LIMIT`, as in vLLM."""

    fps: float | None = None
    num_frames: int | None = None


class ImageIo(Closed, kw_only=True, forbid_unknown_fields=True):
    """Nothing is chosen of how images are read; clients of vLLM send it empty."""


class IoKwargs(Closed, kw_only=True, forbid_unknown_fields=True):
    """`media_io_kwargs`."""

    image: ImageIo | None = None
    video: VideoIo | None = None


def media_settings(processor: ProcessorKwargs | None, io: IoKwargs | None) -> api.MediaSettings:
    """The settings of both objects together. Raises `ParameterError` where they differ, or bounds are there twice."""
    return api.MediaSettings(**{name: value for name, (_, value) in _stated(processor, io).items()})


def media_names(processor: ProcessorKwargs | None, io: IoKwargs | None) -> dict[str, str]:
    """The pipeline's names of the settings -> the places where a request that was read has set them."""
    return {rf"{FIELD}\.{name}": path for name, (path, _) in _stated(processor, io).items()}


def _stated(processor: ProcessorKwargs | None, io: IoKwargs | None) -> dict[str, tuple[str, Any]]:
    """Setting -> where it stands, and its value."""
    if processor is not None:
        _check_sampling(processor)
    stated: dict[str, tuple[str, Any]] = {}
    size = processor.size if processor is not None else None
    video = io.video if io is not None else None
    places: list[tuple[str, msgspec.Struct | None, dict[str, str]]] = [
        ("mm_processor_kwargs", processor, {name: name for name in (*SIZE, "fps", "num_frames")}),
        ("mm_processor_kwargs.size", size, SIZE),
        ("media_io_kwargs.video", video, {"fps": "fps", "num_frames": "num_frames"}),
    ]
    for place, given, names in places:
        for name, spelled in names.items():
            value = getattr(given, spelled, None)
            if value is None or (given is video and value == NO_LIMIT):
                continue
            path = f"{place}.{spelled}"
            if name in stated and stated[name][1] != value:
                other, before = stated[name]
                raise ParameterError(path, f"is {value!r:.64}, but {other} is {before!r:.64}; set only one of them")
            stated.setdefault(name, (path, value))
    return stated


def _check_sampling(processor: ProcessorKwargs) -> None:
    """Raises `ParameterError` for what is not followed of how frames are chosen."""
    if processor.do_sample_frames is False:
        message = f"is false, but {SAMPLED}"
        raise ParameterError("mm_processor_kwargs.do_sample_frames", message, "UNSUPPORTED")
    for name in ("min_frames", "max_frames"):
        if getattr(processor, name) is not None:
            message = "is the model's own and not changed by requests; set num_frames, or fps"
            raise ParameterError(f"mm_processor_kwargs.{name}", message, "UNSUPPORTED")
