"""config.json of a decoder, out of a GGUF file's metadata and the shapes of its tensors."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from quire.deploy.gguf.families import FAMILIES, Family
from quire.deploy.gguf.metadata import REMEDY, Metadata, shortest
from quire.deploy.gguf.rope import YARN_ENDS, rope_parameters
from quire.worker.weights.gguf.files import GgufModel
from quire.worker.weights.gguf.names import (
    ARCHITECTURE,
    ARCHITECTURES,
    EMBEDDING,
    HEAD,
    LONG_FACTORS,
    ROPE_FACTORS,
    ROUTED,
    SHORT_FACTORS,
)
from quire.worker.weights.parts import ModelError

DTYPES: Final = {"F16": "float16", "BF16": "bfloat16"}
"""Type of the embedding -> dtype of the model; of all others it is float32, which holds each of them."""
ENDS: Final = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
BEGIN: Final = "tokenizer.ggml.bos_token_id"
FACTORS: Final = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
KNOWN: Final = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "vocab_size",
    "pooling_type",
    "tensor_data_layout",
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    *YARN_ENDS.values(),
    "expert_count",
    "expert_used_count",
)
"""Keys of an architecture that are read, or that change nothing."""


def config_of(model: GgufModel) -> dict[str, Any]:
    """Fields of config.json, but for the ends, which the vocabulary says. ModelError names what is not served."""
    metadata = Metadata(model.metadata)
    arch = metadata.text(ARCHITECTURE)
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(ARCHITECTURE, f"{arch[:64]!r} is not supported; supported in GGUF: {known}; {REMEDY}")
    if arch not in ROUTED and metadata.integer(f"{arch}.expert_count", 0, least=0):
        raise ModelError(f"{arch}.expert_count", f"mixtures of experts are {' and '.join(ROUTED)} alone; {REMEDY}")
    if not metadata.flag(f"{arch}.attention.causal", True):
        raise ModelError(f"{arch}.attention.causal", f"decoders that see what follows are not supported; {REMEDY}")
    family = FAMILIES.get(arch, Family())
    refuse_unread(metadata, arch, (*KNOWN, *family.keys))
    heads = metadata.integer(f"{arch}.attention.head_count")
    hidden = metadata.integer(f"{arch}.embedding_length")
    head_dim = metadata.integer(f"{arch}.attention.key_length", hidden // heads)
    turning = metadata.integer(f"{arch}.rope.dimension_count", head_dim)
    alike = {"attention.value_length": metadata.integer(f"{arch}.attention.value_length", head_dim)}
    alike |= {} if family.has_partial_rope else {"rope.dimension_count": turning}
    for name, size in alike.items():
        if size != head_dim:
            raise ModelError(f"{arch}.{name}", f"must be that of keys, {head_dim}; {REMEDY}")
    common = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "dtype": dtype_of(model),
        "vocab_size": vocab_size(model),
        "hidden_size": hidden,
        "intermediate_size": metadata.integer(f"{arch}.feed_forward_length"),
        "num_hidden_layers": metadata.integer(f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in model.tensors,
        "max_position_embeddings": metadata.integer(f"{arch}.context_length"),
        "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": HEAD not in model.tensors,
        "bos_token_id": metadata.token(BEGIN),
        **({"partial_rotary_factor": turning / head_dim} if family.has_partial_rope else {}),
        **rope_parameters(metadata, arch, head_dim, *(_factors(model, name, turning) for name in FACTORS)),
    }
    return common | family.fields(metadata, common)


def refuse_unread(metadata: Metadata, arch: str, known: Sequence[str]) -> None:
    """ModelError for a key that nothing here reads: it may change what the weights mean."""
    read = {f"{arch}.{name}" for name in known}
    if unread := [key for key in metadata.under(f"{arch}.") if key not in read]:
        raise ModelError(unread[0], f"is not read; {REMEDY}")


def dtype_of(model: GgufModel) -> str:
    """The model's dtype, by the type of its embedding."""
    return DTYPES.get(model.tensors[EMBEDDING].type.name, "float32") if EMBEDDING in model.tensors else "float32"


def vocab_size(model: GgufModel) -> int:
    """Rows of the embedding. ModelError where there is none."""
    if EMBEDDING not in model.tensors:
        raise ModelError(EMBEDDING, f"is not there; {REMEDY}")
    return model.tensors[EMBEDDING].shape[0]


def _factors(model: GgufModel, name: str, turning: int) -> list[float] | None:
    """Numbers of the ropes' pairs, if the file has them."""
    tensor = model.tensors.get(name)
    if tensor is None:
        return None
    if tensor.type.name != "F32" or tensor.shape != (turning // 2,):
        raise ModelError(name, f"must be F32 of {turning // 2}, is {tensor.type.name} of {list(tensor.shape)}")
    values = np.fromfile(model.headers[name].path, "<f4", turning // 2, offset=tensor.offset)
    return [shortest(float(value)) for value in values]
