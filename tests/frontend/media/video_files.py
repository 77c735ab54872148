"""Video files as clients send them, made here."""

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import cv2
import numpy as np
from PIL import Image

CODECS = {"mp4": "mp4v", "avi": "MJPG", "mkv": "mp4v", "webm": "VP80", "mov": "mp4v", "ts": "mp4v"}


def pictures(number: int, width: int = 96, height: int = 64, seed: int = 0) -> list[Image.Image]:
    """Frames over which a bright field moves, so that no two of them are alike."""
    random = np.random.default_rng(seed)
    found = []
    for index in range(number):
        values = np.full((height, width, 3), (30, 80 + index % 100, 160), np.uint8)
        values += random.integers(0, 20, values.shape, dtype=np.uint8)
        values[:, (7 * index) % width : (7 * index) % width + 12] = (250, 20, 20)
        found.append(Image.fromarray(values))
    return found


def video(frames: Sequence[Image.Image], kind: str = "mp4", fps: float = 10.0) -> bytes:
    """A file of these frames."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"video.{kind}"
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*CODECS[kind]), fps, frames[0].size)
        assert writer.isOpened(), kind
        for frame in frames:
            writer.write(cv2.cvtColor(np.asarray(frame), cv2.COLOR_RGB2BGR))
        writer.release()
        return path.read_bytes()


def decoded(data: bytes, indices: Sequence[int]) -> list[Image.Image]:
    """The frames of a file at these places, as OpenCV decodes all of it."""
    with _opened(data) as capture:
        frames = []
        while (found := capture.read())[0]:
            frames.append(Image.fromarray(cv2.cvtColor(found[1], cv2.COLOR_BGR2RGB)))
        return [frames[index] for index in indices]


def rate(data: bytes) -> float:
    """Frames a second as the file has them: not every container knows every rate."""
    with _opened(data) as capture:
        return capture.get(cv2.CAP_PROP_FPS)


@contextmanager
def _opened(data: bytes) -> Iterator[cv2.VideoCapture]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video"
        path.write_bytes(data)
        with mock.patch.dict(os.environ):
            os.environ.pop("OPENCV_FFMPEG_CAPTURE_OPTIONS", None)  # what is tested forbids to open files
            yield cv2.VideoCapture(str(path))


def animation(frames: Sequence[Image.Image], format: str = "WEBP", milliseconds: int = 100) -> bytes:
    file = io.BytesIO()
    options = {"lossless": True} if format == "WEBP" else {}
    frames[0].save(file, format, save_all=True, append_images=frames[1:], duration=milliseconds, **options)
    return file.getvalue()
