"""The files of a model's folder that say how its images and videos are prepared."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = ("Fast", "Pil")
"""Ends of a processor's name, which say how transformers computes the same."""


@dataclass(frozen=True)
class ProcessorFiles:
    """Settings by the names that transformers gives them; what no file states is not here."""

    image_file: Path
    """The file of `image`."""
    image: Mapping[str, Any]
    video: Mapping[str, Any]
    """Those of videos; where no file is theirs, those of images stand for them, as in transformers."""
    config: Mapping[str, Any]
    """config.json."""
    together: Mapping[str, Any]
    """processor_config.json, whose settings are those of the processor of texts and images."""
    tokenizer: Path
    """Folder of tokenizer.json."""

    @classmethod
    def of_model(cls, folder: Path, tokenizer: Path) -> "ProcessorFiles":
        """Raises `ValueError` naming the file that does not read."""
        newer, older = folder / "processor_config.json", folder / "preprocessor_config.json"
        nested, alone = _read(newer), _read(older)
        image = nested.get("image_processor")
        video = nested.get("video_processor")
        if not isinstance(video, Mapping):
            video = _read(folder / "video_preprocessor_config.json") or alone
        config = _read(folder / "config.json")
        if isinstance(image, Mapping):
            return cls(newer, image, video, config, nested, tokenizer)
        return cls(older, alone, video, config, nested, tokenizer)

    @property
    def name(self) -> str:
        """Name of the processor of images, whatever it computes with; empty: no file states one."""
        return processor_name(self.image.get("image_processor_type", ""))


def processor_name(stated: object) -> str:
    """The name of a processor, whatever it computes with."""
    name = str(stated)
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def check_fixed(settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a setting that states another value than the one that is followed here."""
    for name, value in fixed.items():
        if settings.get(name, value) != value:
            raise ValueError(f"{name}: {settings[name]!r:.64} is not supported; only {value!r} is")


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
