"""The table of families, and the one of a model by the files in its folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quire.frontend.media.families import qwen

MediaFamily = qwen.QwenImages
"""A family by any of its rows."""

READERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], MediaFamily | None]] = {
    "Qwen2VLImageProcessor": qwen.read,
}
"""`image_processor_type` -> the reader of the family."""
SUFFIXES = ("Fast", "Pil")
"""Ends of that name, which say how transformers computes the same."""


def read_family(folder: Path, overrides: Mapping[str, Any] = {}) -> MediaFamily | None:
    """The family of the model in a folder; `overrides`: settings of this server that go before the model's.

    None: its files say nothing of images, or nothing of a tower that reads them. Raises `ValueError` for settings that
    cannot be followed, and for a tower's images of a family that is not here.
    """
    file, processor = _processor(folder)
    config = _read(folder / "config.json")
    name = str(processor.get("image_processor_type", ""))
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    reader = READERS.get(name)
    if reader is None and name and "vision_config" in config:
        remedy = f"known here: {', '.join(READERS)}; correct it, or set language_model_only to read text alone"
        raise ValueError(f"{file}: image_processor_type: {name!r:.64} is not known; {remedy}")
    if reader is None:
        return None
    try:
        family = reader(processor, config)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if family is None or not overrides:
        return family
    try:
        return family.with_bounds(overrides)
    except ValueError as error:
        raise ValueError(f"mm_processor_kwargs: {error}") from error


def _processor(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """The settings of images and their file; empty where there are none."""
    newer, older = folder / "processor_config.json", folder / "preprocessor_config.json"
    nested = _read(newer).get("image_processor")
    if isinstance(nested, Mapping):
        return newer, nested
    return older, _read(older)


def _read(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; empty where there is no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: does not read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: is no JSON object")
    return found
