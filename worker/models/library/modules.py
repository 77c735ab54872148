"""The library's modules as they are built: on the meta device, with buffers that are computed for real."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

from quire.worker.fields import MAX_LAYERS, Config, shown
from quire.worker.models.library.attention import NAME
from quire.worker.models.library.experts import EXPERTS
from quire.worker.weights.parts import ModelError

LIBRARY: Final = f"transformers {transformers.__version__}"
LEFT_OUT: Final = ("auto_map", "quantization_config", "dtype", "torch_dtype", "transformers_version", "architectures")
"""Fields that the library's configuration does without: code is never run, and the rest is read by us."""
COUNTED: Final = re.compile(r"(?:.*_)?(?:layers?|experts)")
"""Names of fields that count what is a value of its own in the library, or a name."""
MOST_COUNTED: Final = 1 << 16
STATEFUL: Final = (
    "linear_attention",
    "conv",
    "hybrid",
    "hybrid_sliding",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "minimax_m3_sparse",
    "deepseek_sparse_attention",
    "qwen_sparse_attention",
)
"""Types of layers that keep something else of a text than keys and values."""
POOLER: Final = "pooler"
"""The library's name in a trunk for what makes one vector of a text, which heads of labels read."""
GROWING_ROPES: Final = ("dynamic", "longrope")
"""Their angles hang on the longest sequence of a step, which is another one every time."""

SERVED: Final = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    modeling_auto.MODEL_MAPPING_NAMES,
)
"""The library's tables of models with an output head, with labels for a text or its tokens, and without a head."""

Modules = Any
"""A model of the library's, which has no types that a checker could use."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model of the library's, apart: what runs a step's tokens, and what makes logits of the last hidden states."""

    whole: Modules
    trunk: Modules
    trunk_name: str
    """Name of the trunk in the whole; empty: the model has no head."""

    @property
    def prefix(self) -> str:
        """Beginning that stands before the trunk's names in those of the whole."""
        return f"{self.trunk_name}." if self.trunk_name else ""

    @property
    def optional(self) -> str:
        """Beginning of the trunk's names that checkpoints have or leave out."""
        return self.prefix or f"{self.whole.base_model_prefix}."

    @property
    def is_labelled(self) -> bool:
        """Its head is one for labels, of the library's own."""
        return type(self.whole).__name__.endswith("Classification")

    def in_head(self, name: str) -> bool:
        """A module, by its name in the whole, is none that runs tokens; what pools a text for labels is none."""
        path = f"{name}."
        return not path.startswith(self.prefix) or (self.is_labelled and path.startswith(f"{self.prefix}{POOLER}."))

    def widen_head(self) -> None:
        """Make what is behind the trunk float32."""
        for name, child in self.whole.named_children():
            if self.in_head(name):
                child.float()
        if getattr(self.trunk, POOLER, None) is not None:
            self.trunk.pooler.float()


def find_class(architecture: str) -> Modules:
    """The library's class. Raises ModelError for one that it does not have, or whose attention cannot be ours."""
    if architecture not in _names(*SERVED):
        raise ModelError("architectures", _unserved(architecture))
    found = getattr(transformers, architecture)
    try:
        reads_text = found.main_input_name == "input_ids"
    except ImportError as error:
        raise ModelError("architectures", f"{architecture} of {LIBRARY}: {first_line(error)}") from error
    if not reads_text:
        raise ModelError("architectures", f"{architecture} of {LIBRARY} reads no text; it is not served")
    if found._is_stateful:
        raise ModelError("architectures", f"{architecture} keeps a state of its own, which no KV cache holds")
    if not found._supports_attention_backend:
        raise ModelError("architectures", f"{architecture} of {LIBRARY} has no interface for attention of others")
    return found


def _unserved(architecture: str) -> str:
    """The reason why a class that is in no table of those served cannot be."""
    name = f"{architecture} of {LIBRARY}"
    sighted = (
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    if architecture in _names(*sighted):
        return f"{name} reads more than text, and of its modules those of text alone are served"
    if architecture in _names(modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES):
        return f"{name} reads speech; it is not served"
    if architecture in _names(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES):
        return f"{name} has an encoder beside the decoder; it is not served"
    if hasattr(transformers, architecture):
        return f"{name} is for another task than to generate, classify or embed texts; it is not served"
    return f"{shown(architecture)} is no model of {LIBRARY} either; it is of a newer release, or misspelt"


def _names(*tables: Mapping[str, Any]) -> set[str]:
    """The classes that the library's tables name, where a type of model may have several."""
    found = (one for table in tables for one in table.values())
    return {name for one in found for name in ((one,) if isinstance(one, str) else one)}


def read_library_config(kind: Modules, config: Config) -> Any:
    """The library's configuration of a model. Raises ModelError for what it does not take, and for what we do not."""
    fields = {name: value for name, value in config.items() if name not in LEFT_OUT}
    for name, value in _integers(fields):
        if COUNTED.fullmatch(name) and not 0 <= value <= MOST_COUNTED:
            raise ModelError(name, f"must be an integer in [0, {MOST_COUNTED}], got {shown(value)}")
    try:
        found = kind.config_class.from_dict(fields)
    except Exception as error:  # whatever its checks raise, the file is wrong
        raise ModelError("config.json", f"{LIBRARY} does not take it: {first_line(error)}") from error
    if found.get_text_config(decoder=True) is not found:
        raise ModelError("architectures", f"{kind.__name__} of {LIBRARY} has more in it than text; it is not served")
    layers = getattr(found, "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 < layers <= MAX_LAYERS:
        raise ModelError("num_hidden_layers", f"must be an integer in [1, {MAX_LAYERS}], got {shown(layers)}")
    for layer in getattr(found, "layer_types", None) or ():
        if layer in STATEFUL:
            message = f"{kind.__name__} has layers of {layer}, whose state no KV cache holds; it is not served"
            raise ModelError("layer_types", message)
    if getattr(found, "is_encoder_decoder", False):
        raise ModelError("is_encoder_decoder", "an encoder beside the decoder is not served")
    for rope in _ropes(getattr(found, "rope_parameters", None)):
        if rope in GROWING_ROPES:
            raise ModelError("rope_parameters", f"the angles of a {rope} rope hang on what else runs; it is not served")
    return found


def _integers(fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Those of a config and of its sections."""
    for name, value in fields.items():
        if isinstance(value, int):
            yield name, value
        elif isinstance(value, dict) and name.endswith("_config"):
            yield from _integers(value)


def _ropes(parameters: object) -> list[str]:
    """Types of the ropes, of which there may be one for each type of layer."""
    if not isinstance(parameters, Mapping):
        return []
    found = [str(parameters.get("rope_type", ""))]
    return found + [name for part in parameters.values() for name in _ropes(part)]


def build_modules(kind: Modules, config: Any, dtype: torch.dtype, device: torch.device) -> Parts:
    """The modules, parameters on the meta device and buffers that no checkpoint holds on `device`.

    Raises ModelError for modules that are put together in a way that is not known here.
    """
    try:
        with torch.device("meta"):
            whole = kind._from_config(config, dtype=dtype, attn_implementation=NAME)
    except Exception as error:
        raise ModelError("config.json", f"{LIBRARY} builds no model of it: {first_line(error)}") from error
    whole.eval().requires_grad_(False)
    whole.config._experts_implementation = EXPERTS
    vars(whole.config)["pad_token_id"] = None  # else every step looks for padding, and waits for the device
    _compute_buffers(whole, device)
    if kind.__name__ in _names(modeling_auto.MODEL_MAPPING_NAMES):
        return _pooled(Parts(whole, whole, ""))
    children = [
        (name, child) for name, child in whole.named_children() if isinstance(child, transformers.PreTrainedModel)
    ]
    if len(children) != 1:
        raise ModelError("architectures", f"{kind.__name__} has {len(children)} models in it; one is served")
    name, trunk = children[0]
    return _pooled(Parts(whole, trunk, name))


def _pooled(parts: Parts) -> Parts:
    """The same without a pooler that nothing reads. Raises ModelError for one that is no module of its own."""
    pooler = getattr(parts.trunk, POOLER, None)
    if pooler is not None and not parts.is_labelled:
        parts.trunk.pooler = None
    elif isinstance(pooler, nn.Linear):
        message = f"the head of {type(parts.whole).__name__} reads what its trunk pools by itself; it is not served"
        raise ModelError("architectures", message)
    return parts


def takes_types(trunk: Modules) -> bool:
    """It has types of tokens, for which of two texts each belongs to."""
    several = getattr(trunk.config, "type_vocab_size", 0) > 1
    return several and "token_type_ids" in inspect.signature(trunk.forward).parameters


def _compute_buffers(whole: Modules, device: torch.device) -> None:
    """Let the library fill what it computes, and see that it did. Raises ModelError."""
    if device.type == "meta":
        return
    models: dict[str, Modules] = {}  # by their paths, each in front of those within it
    for path, module in whole.named_modules():
        if isinstance(module, transformers.PreTrainedModel):
            models[f"{path}." if path else ""] = module
        own = module._non_persistent_buffers_set
        names = [name for name, one in module._buffers.items() if one is not None and name in own]
        for name in names:
            module._buffers[name] = _unset(module._buffers[name], device)
        if names:
            model = next(one for prefix, one in reversed(models.items()) if f"{path}.".startswith(prefix))
            with torch.no_grad():
                model._init_weights(module)
        for name in names:
            if module._buffers[name].equal(_unset(module._buffers[name], device)):
                raise ModelError("architectures", f"{LIBRARY} does not compute {path}.{name}; it is not served")


def _unset(buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same shape of a value that no buffer has throughout."""
    value = -3.0 if buffer.is_floating_point() else 0 if buffer.dtype == torch.bool else -3
    return torch.full(buffer.shape, value, dtype=buffer.dtype, device=device)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
