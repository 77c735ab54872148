"""Sizes of images and frames of the Qwen family: rounded to whole tokens, within bounds of pixels."""

import math

from quire.frontend.media.refused import MediaRefused

MAX_ASPECT = 200


def check_aspect(height: int, width: int, sent: tuple[int, int] | None = None) -> None:
    """Raises `MediaRefused` for sides that differ too much. `sent`: height and width as a client has them, where those
    are others."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        rows, columns = sent or (height, width)
        message = f"one side of {columns} x {rows} pixels is more than {MAX_ASPECT} times the other; cut the image"
        raise MediaRefused(message)


def enlarged_size(
    height: int, width: int, unit: int, min_pixels: int, max_pixels: int, num_frames: int, num_counted: int
) -> tuple[int, int]:
    """`rounded_size` of frames that first become as high and as wide as a token. Raises `MediaRefused`."""
    sent = height, width
    if min(sent) < unit:
        scale = max(unit / height, unit / width)
        height, width = int(height * scale), int(width * scale)
    check_aspect(height, width, sent)
    return rounded_size(height, width, unit, min_pixels, max_pixels, num_frames, num_counted)


def rounded_size(
    height: int,
    width: int,
    unit: int,
    min_pixels: int,
    max_pixels: int,
    num_frames: int = 1,
    num_counted: int = 1,
) -> tuple[int, int]:
    """Height and width to which so many frames of this size are resized; `unit`: pixels of the side of a token.

    The bounds are for all frames together: those of the rounded size are `num_counted`.
    """
    rows, columns = round(height / unit) * unit, round(width / unit) * unit
    if num_counted * rows * columns > max_pixels:
        shrink = math.sqrt(num_frames * height * width / max_pixels)
        rows = max(unit, math.floor(height / shrink / unit) * unit)
        columns = max(unit, math.floor(width / shrink / unit) * unit)
    elif num_counted * rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (num_frames * height * width))
        rows, columns = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return rows, columns
