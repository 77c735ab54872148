"""The normalization of pixels, by which a tower reads them: as the files of the checkpoint's image processor say."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quire.worker.fields import Config, flag, inside, integer, number, read_json, section, shown
from quire.worker.specs.vision_spec import CHANNELS, VisionSpec
from quire.worker.weights.parts import ModelError

FILE: Final = "preprocessor_config.json"
NEWER_FILE: Final = "processor_config.json"
NESTED: Final = "image_processor"
"""Section of the newer file, which comes first where it is there."""


@dataclass(frozen=True, slots=True)
class Normalization:
    """A byte of a channel stands for `(byte * factor - mean) / std`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    factor: float


def read_normalization(folder: Path, vision: VisionSpec) -> Normalization:
    """ModelError without the files, and for what they state otherwise than the tower of config.json has it."""
    name, stated = _stated(folder)
    with inside(name):
        if not flag(stated, "do_rescale", True):
            raise ModelError("do_rescale", "must be true: towers read normalised pixels; correct the file")
        for field, size in vision.processor_sizes.items():
            if (found := integer(stated, field, size)) != size:
                raise ModelError(field, f"is {found}, but config.json has {size}; download both files again")
        mean, std = _deviation(stated, vision.pixel_range)
        return Normalization(mean, std, number(stated, "rescale_factor", 1 / 255))


def largest_image(folder: Path, vision: VisionSpec, most: int) -> int:
    """Tokens of the largest item that the processor makes, `most` where the context holds no more; 0 without the
    files."""
    if not (folder / FILE).exists() and not (folder / NEWER_FILE).exists():
        return 0
    name, stated = _stated(folder)
    with inside(name):
        return min(most, vision.largest_item(stated))


def _deviation(stated: Config, pixel_range: tuple[float, float] | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel. `pixel_range`: see `VisionSpec`. Raises ModelError."""
    is_normalised = flag(stated, "do_normalize", pixel_range is None)
    if pixel_range is None and not is_normalised:
        raise ModelError("do_normalize", "must be true: towers read normalised pixels; correct the file")
    if pixel_range is None or is_normalised:
        mean, std = (_numbers(stated, field) for field in ("image_mean", "image_std"))
        if not all(one > 0 for one in std):
            raise ModelError("image_std", f"must be positive, got {shown(list(std))}")
    if pixel_range is None:
        return mean, std
    if is_normalised and {*mean} | {one - 1 for one in std} != {0.0}:
        raise ModelError("do_normalize", "must be false: the tower itself normalises pixels; correct the file")
    low, high = pixel_range
    return (-low / (high - low),) * CHANNELS, (1 / (high - low),) * CHANNELS


def _stated(folder: Path) -> tuple[str, Config]:
    """The file's name, and what it states."""
    if (folder / NEWER_FILE).exists() and NESTED in (newer := read_json(folder / NEWER_FILE)):
        with inside(NEWER_FILE):
            return NEWER_FILE, section(newer, NESTED)
    if not (folder / FILE).exists():
        remedy = "download it beside config.json, or set language_model_only to read text alone"
        raise ModelError(FILE, f"not found in {folder}: it says how images are normalised; {remedy}")
    return FILE, read_json(folder / FILE)


def _numbers(config: Config, name: str) -> tuple[float, ...]:
    """A number for each channel."""
    value = config.get(name)
    numbers = value if isinstance(value, list) else []
    if len(numbers) != CHANNELS or not all(_is_finite(one) for one in numbers):
        raise ModelError(name, f"must be {CHANNELS} numbers, one for each channel, got {shown(value)}")
    return tuple(float(one) for one in numbers)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
