"""Files of weights by their names: whether some are served, and what to do where none is."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Final

_PICKLED: Final = ("pytorch_model*.bin",)
_OWN_LAYOUT: Final = ("consolidated.*", "consolidated-*")
_OF_OTHERS: Final = {
    "tf_model.h5": "TensorFlow",
    "flax_model*.msgpack": "Flax",
    "*.onnx": "ONNX",
    "*.nemo": "NeMo",
    "*.mlpackage/*": "Core ML",
    "openvino_model.bin": "OpenVINO",
    "*.llamafile": "llamafile",
    "*.engine": "TensorRT",
}
"""Pattern of a file -> the format that it belongs to."""
_OTHER_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
ADAPTER: Final = "adapter_model"


def has_safetensors(names: Collection[str]) -> bool:
    """Some hold a model's weights: beside each other, and not in their makers' own layout."""
    whole = (name for name in names if name.endswith(".safetensors") and "/" not in name)
    return any(not _any(name, (*_OWN_LAYOUT, f"{ADAPTER}*")) for name in whole)


def unserved(names: Collection[str], source: str) -> str:
    """Why weights of these files are not served, and what to do; empty: some are, or there are none.

    `source`: the directory or the hub id, as `quire convert` takes it.
    """
    if "model_index.json" in names:
        return "a pipeline of diffusers, which makes pictures; quire serves models of language"
    if has_safetensors(names) or any(name.endswith(".gguf") for name in names):
        return ""
    if "adapter_config.json" in names:
        return (
            "an adapter, and quire serves no adapters yet; merge it into its base model (merge_and_unload of peft), "
            "and serve what save_pretrained writes of that"
        )
    if _found(names, _PICKLED):
        return (
            f"the weights are pickled, and pickles run code; `quire convert {source} OUT` makes *.safetensors of "
            "pytorch_model.bin"
        )
    if own := _found(names, _OWN_LAYOUT):
        return (
            f"{own} is in the layout of its makers; serve the repository in Hugging Face layout, which has "
            "model.safetensors, or convert it with the script of that model in transformers"
        )
    for pattern, kind in _OF_OTHERS.items():
        if other := _found(names, (pattern,)):
            return (
                f"{other} is of {kind}, which is not read; serve a repository that has model.safetensors, as "
                "save_pretrained of transformers writes it"
            )
    if other := _found(names, _OTHER_PICKLES):
        return (
            f"{other} is pickled, and pickles run code; `quire convert` reads pytorch_model.bin alone: load it with "
            "the code that wrote it, and save it with save_pretrained of transformers"
        )
    return ""


def _found(names: Collection[str], patterns: Sequence[str]) -> str:
    return next((name for name in sorted(names) if _any(name, patterns)), "")


def _any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
