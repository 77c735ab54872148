"""The settings that a folder of sentence-transformers states for requests that leave them out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from quire.proto.messages.message import Task
from quire.proto.messages.params import ParameterError

Vector = npt.NDArray[np.float32]
SETTINGS: Final = "config_sentence_transformers.json"
MODULES: Final = "modules.json"
TASKS: Final[Mapping[str, Task]] = {"SentenceTransformer": "embed", "CrossEncoder": "score"}
"""Kind of a model -> the task for which its settings are meant."""
PROMPTS: Final = {"query": "", "document": ""}
"""Those that every model to embed with has."""
SHOWN: Final = 64
MOST_REPEATED: Final = 400
"""Most characters of an error, or of a list of names, that a sentence repeats."""
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


class SentenceSettings(msgspec.Struct, frozen=True):
    """The changes of texts before the model, and of its vectors behind it."""

    normalizes: bool = True
    """The model's vectors have length 1."""
    task: Task | None = None
    """The task for which the rest is meant; None: for none."""
    prompts: Mapping[str, str] = {}
    """Name -> the text that is put in front of a text."""
    default_prompt: str | None = None
    dimensions: int | None = None
    """Leading components that are kept of a vector, whose length is not made 1 again."""
    similarity: Similarity = "cosine"
    """The score of two vectors; of distances the negative."""
    chats: bool = False
    """Texts are a user's messages to the model's chat template, and prompts those of the system."""

    def prompt(self, task: Task, name: str | None = None) -> str:
        """The prompt of this name, or the default one; empty for none. Raises `ParameterError`."""
        known = self.prompts if task == self.task else {}
        name = name if name is not None or task != self.task else self.default_prompt
        if name is None:
            return ""
        if name not in known:
            listed = f"it has {_listed(known)}" if known else "it has none"
            raise ParameterError("prompt_name", f"{name[:SHOWN]!r} is no prompt of this model; {listed}")
        return known[name]

    def finished(self, vector: Vector) -> Vector:
        """The vector as the library gives it, of what the model made."""
        return (normalized(vector) if self.normalizes else vector)[: self.dimensions]


def normalized(vector: Vector) -> Vector:
    """The vector scaled to length 1; zeros stay zeros."""
    length = np.linalg.norm(vector.astype(np.float64))
    result: Vector = (vector / max(length, np.finfo(np.float64).tiny)).astype(np.float32)
    return result


def sentence_settings(model_dir: Path) -> SentenceSettings:
    """Read them. Raises `ValueError` naming the file."""
    path = model_dir / MODULES
    if not path.is_file():
        return SentenceSettings()
    stages = _read(path, list[dict[str, Any]])
    kinds = [str(stage.get("type", "")).rpartition(".")[2] for stage in stages]
    last = next((kind for kind in reversed(kinds) if kind != "Dropout"), "")
    path = model_dir / SETTINGS
    stated = _read(path, dict[str, Any]) if path.is_file() else {}
    task = TASKS.get(str(stated.get("model_type", "SentenceTransformer")))
    try:
        named = msgspec.convert(stated.get("prompts") or {}, dict[str, str | None])
        default = msgspec.convert(stated.get("default_prompt_name"), str | None)
        dimensions = msgspec.convert(stated.get("truncate_dim"), int | None)
        similarity = msgspec.convert(stated.get("similarity_fn_name") or "cosine", Similarity)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise ValueError(f"{path}: {_reason(error)}") from error
    prompts = (PROMPTS if task == "embed" else {}) | {name: text or "" for name, text in named.items()}
    if default is not None and default not in prompts:
        raise ValueError(f"{path}: default_prompt_name: {default[:SHOWN]!r} is none of prompts: {_listed(prompts)}")
    if dimensions is not None and dimensions < 1:
        raise ValueError(f"{path}: truncate_dim: must be at least 1, got {dimensions}")
    return SentenceSettings(last == "Normalize", task, prompts, default, dimensions, similarity, _chats(model_dir))


def _chats(model_dir: Path) -> bool:
    path = next(iter(sorted(model_dir.glob("sentence_*_config.json"))), None)
    ways = _read(path, dict[str, Any]).get("modality_config") if path is not None else None
    return isinstance(ways, dict) and "message" in ways


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.convert(json.loads(path.read_bytes()), kind)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: does not read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The text of an error, cut: some repeat a value that may be of any length."""
    return str(error)[:MOST_REPEATED]


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(names)[:MOST_REPEATED]
