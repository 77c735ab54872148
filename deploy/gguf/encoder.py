"""config.json of an encoder, out of a GGUF file's metadata and the shapes of its tensors."""

from typing import Any, Final

from quire.deploy.gguf.config import dtype_of, refuse_unread, vocab_size
from quire.deploy.gguf.metadata import REMEDY, Metadata
from quire.worker.weights.gguf.files import GgufModel
from quire.worker.weights.gguf.names import ARCHITECTURES, ENCODER, TOKEN_TYPES
from quire.worker.weights.parts import ModelError

TYPE_COUNT: Final = "tokenizer.ggml.token_type_count"
KNOWN: Final = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "vocab_size",
    "pooling_type",
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_epsilon",
)
"""Keys of the architecture that are read, or that change nothing."""
HEADS: Final = "cls."
"""Tensors of models that rank or classify begin so."""


def encoder_config(model: GgufModel) -> dict[str, Any]:
    """Fields of config.json. ModelError names what is not served.

    BERT, RoBERTa and XLM-RoBERTa are one architecture, whose positions begin with the table's first row. The
    activation is in no file: it is the exact GELU of them all.
    """
    metadata = Metadata(model.metadata)
    refuse_unread(metadata, ENCODER, KNOWN)
    _refuse_heads(model)
    if metadata.flag(f"{ENCODER}.attention.causal", False):
        raise ModelError(f"{ENCODER}.attention.causal", f"encoders that see only the past are not supported; {REMEDY}")
    heads = metadata.integer(f"{ENCODER}.attention.head_count")
    hidden = metadata.integer(f"{ENCODER}.embedding_length")
    if hidden % heads:
        message = f"{heads} do not divide {ENCODER}.embedding_length {hidden}; {REMEDY}"
        raise ModelError(f"{ENCODER}.attention.head_count", message)
    alike = {"head_count_kv": heads, "key_length": hidden // heads, "value_length": hidden // heads}
    for name, wanted in alike.items():
        if metadata.integer(f"{ENCODER}.attention.{name}", wanted) != wanted:
            raise ModelError(f"{ENCODER}.attention.{name}", f"must be {wanted}; {REMEDY}")
    return {
        "architectures": [ARCHITECTURES[ENCODER]],
        "model_type": ENCODER,
        "dtype": dtype_of(model),
        "vocab_size": vocab_size(model),
        "type_vocab_size": _num_token_types(model, metadata),
        "hidden_size": hidden,
        "intermediate_size": metadata.integer(f"{ENCODER}.feed_forward_length"),
        "num_hidden_layers": metadata.integer(f"{ENCODER}.block_count"),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
        "max_position_embeddings": metadata.integer(f"{ENCODER}.context_length"),
        "layer_norm_eps": metadata.number(f"{ENCODER}.attention.layer_norm_epsilon"),
    }


def _refuse_heads(model: GgufModel) -> None:
    if head := next((name for name in model.tensors if name.startswith(HEADS)), None):
        raise ModelError(head, f"is of a model that ranks or classifies, which is not supported; {REMEDY}")


def _num_token_types(model: GgufModel, metadata: Metadata) -> int:
    if TOKEN_TYPES not in model.tensors:
        raise ModelError(TOKEN_TYPES, f"is not there; {REMEDY}")
    rows = model.tensors[TOKEN_TYPES].shape[0]
    if metadata.integer(TYPE_COUNT, rows) != rows:
        raise ModelError(TYPE_COUNT, f"must be that of the rows of {TOKEN_TYPES}, {rows}; {REMEDY}")
    return rows
