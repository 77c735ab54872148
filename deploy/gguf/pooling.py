"""The files of sentence-transformers, out of the pooling that a GGUF file's metadata states."""

from typing import Any, Final

from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.worker.weights.parts import ModelError

MODULES: Final = "modules.json"
FOLDER: Final = "1_Pooling"
CONFIG: Final = f"{FOLDER}/config.json"
POOLINGS: Final = {1: "mean_tokens", 2: "cls_token", 3: "lasttoken"}
"""The format's number -> the end of the field's name."""


def pooling_files(metadata: Metadata, arch: str) -> dict[str, Any]:
    """Name of a file -> its content; none where nothing is stated. ModelError for another pooling.

    Whether vectors become of length 1 no file says: they do, as in llama.cpp and in nearly every such model.
    """
    key = f"{arch}.pooling_type"
    if key not in metadata:
        return {}
    kind = metadata.integer(key, least=0)
    if kind not in POOLINGS:
        known = ", ".join(f"{number} ({name})" for number, name in POOLINGS.items())
        raise ModelError(key, f"{kind} is not supported; supported: {known}; {REMEDY}")
    stages = {"Transformer": "", "Pooling": FOLDER, "Normalize": "2_Normalize"}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{stage}"}
        for place, (stage, path) in enumerate(stages.items())
    ]
    return {MODULES: modules, CONFIG: {f"pooling_mode_{POOLINGS[kind]}": True}}
