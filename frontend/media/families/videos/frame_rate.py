"""Frames a second: those that may be asked for, and how long a video may last by those that it has."""

from typing import Final

from quire.frontend.media.refused import MediaRefused

MIN_FPS: Final = 0.001
MAX_FPS: Final = 1000.0
MAX_SECONDS: Final = 1_000_000
"""Longest video whose frames have a time."""
MAX_RATE: Final = 16
"""Most positions of a second: those of the longest video are fewer than a scheduler takes, 2**24."""


def check_fps(fps: float) -> None:
    """Raises `ValueError` for frames a second that nobody means, and for what is no number."""
    if not MIN_FPS <= fps <= MAX_FPS:
        raise ValueError(f"fps: must be from {MIN_FPS:g} to {MAX_FPS:g} frames a second, got {fps:g}")


def check_duration(num_frames: int, fps: float) -> None:
    """Raises `MediaRefused` for a video that lasts longer than `MAX_SECONDS`."""
    if num_frames > MAX_SECONDS * fps:
        message = f"has {num_frames} frames at {fps:g} a second; at most {MAX_SECONDS} seconds are read"
        raise MediaRefused(f"{message}; state its true rate, or send its frames as pictures")
