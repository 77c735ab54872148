"""The choice between models of our own and the library's modules."""

from collections.abc import Callable, Container
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Final

from quire.worker.config import ModelImpl
from quire.worker.fields import Config, architecture_of, checkpoint_dtype, dtype_name, read_config
from quire.worker.specs.head_spec import HeadShape
from quire.worker.specs.library.spec import LibrarySpec
from quire.worker.weights.header import stored_dtype
from quire.worker.weights.parts import ModelError

Describe = Callable[[Path], LibrarySpec]
"""Function that describes the model in a folder by the modules of the transformers library."""
ASKED_FOR: Final = "model_impl asks for them"
NONE_OF_OURS: Final = "quire has none of its own for this architecture"

TAKEN: Final = "5.17"
"""Releases of the library whose modules are taken: 5.17 and its corrections, which the tests ran."""


def not_taken(version: str) -> ModelError | None:
    """The refusal of an installed release; None: it is taken."""
    if version.split(".")[:2] == TAKEN.split("."):
        return None
    message = (
        f"modules of transformers {TAKEN} run here, and {version} is installed; pip install 'transformers=={TAKEN}.*'"
    )
    return ModelError("model_impl", message)


def stated_config(folder: Path) -> Config:
    """Fields of config.json, with the dtype of the weights where it leaves its own out. Raises ModelError.

    CheckpointError for weights that do not read.
    """
    config = read_config(folder)
    text = config.get("text_config")
    if dtype_name(config) or (isinstance(text, dict) and dtype_name(text)):
        return config
    return {**config, "dtype": stored_dtype(folder)}


def uses_library(config: Config, impl: ModelImpl, known: Container[str]) -> bool:
    """The library's modules run the model. `known`: architectures of our own."""
    return impl == "transformers" or (impl == "auto" and architecture_of(config) not in known)


def described(folder: Path, config: Config, describe: Describe, known: Container[str]) -> LibrarySpec:
    """The spec by the library. Raises ModelError, also for a release of it that is not taken."""
    if release := not_taken(metadata.version("transformers")):
        raise release
    reason = ASKED_FOR if architecture_of(config) in known else NONE_OF_OURS
    try:
        return replace(describe(folder), dtype=checkpoint_dtype(config), reason=reason)
    except ModelError as error:
        raise ModelError(f"{folder}: {error.field}", error.message) from error


def head_shape(spec: LibrarySpec) -> HeadShape | None:
    """The shape of the architecture's head for labels; None: it has none. Its layers are the library's own."""
    if not spec.label_elements:
        return None
    return HeadShape(False, False, "", by_token=spec.architecture.endswith("ForTokenClassification"))
