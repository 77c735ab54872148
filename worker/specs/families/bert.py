"""BERT, RoBERTa and XLM-RoBERTa: encoders that differ in where their positions begin."""

from dataclasses import replace
from typing import Final

from quire.worker.fields import Config, activation, checkpoint_dtype, flag, integer, num_layers, number, shown
from quire.worker.specs.encoder_spec import EncoderSpec
from quire.worker.specs.head_spec import HeadShape
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError

_LAYER = r"(?:\w+\.)?encoder\.layer\.(?P<n>\d+)\."
_LEARNED = r"\.(?P<tensor>weight|bias)"
_STORED = r"\.(?P<tensor>\w+)"
"""Any tensor of a linear layer: its scheme declares which."""
NAMES: Final = NameMap(
    (
        NameRule(r"(?:\w+\.)?embeddings\.word_embeddings" + _STORED, "embedding.{tensor}"),
        NameRule(r"(?:\w+\.)?embeddings\.position_embeddings\.weight", "positions.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.token_type_embeddings\.weight", "token_types.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.LayerNorm" + _LEARNED, "norm.{tensor}"),
        NameRule(r"(?:\w+\.)?embeddings\.LayerNorm\.gamma", "norm.weight"),
        NameRule(r"(?:\w+\.)?embeddings\.LayerNorm\.beta", "norm.bias"),
        NameRule(
            _LAYER + r"attention\.self\.(?P<part>[qkv])(?:uery|ey|alue)" + _STORED,
            "blocks.{n}.attention.qkv.{part}.{tensor}",
        ),
        NameRule(_LAYER + r"attention\.output\.dense" + _STORED, "blocks.{n}.attention.output.{tensor}"),
        NameRule(_LAYER + r"attention\.output\.LayerNorm" + _LEARNED, "blocks.{n}.attention_norm.{tensor}"),
        NameRule(_LAYER + r"attention\.output\.LayerNorm\.gamma", "blocks.{n}.attention_norm.weight"),
        NameRule(_LAYER + r"attention\.output\.LayerNorm\.beta", "blocks.{n}.attention_norm.bias"),
        NameRule(_LAYER + r"intermediate\.dense" + _STORED, "blocks.{n}.mlp.up.{tensor}"),
        NameRule(_LAYER + r"output\.dense" + _STORED, "blocks.{n}.mlp.down.{tensor}"),
        NameRule(_LAYER + r"output\.LayerNorm" + _LEARNED, "blocks.{n}.mlp_norm.{tensor}"),
        NameRule(_LAYER + r"output\.LayerNorm\.gamma", "blocks.{n}.mlp_norm.weight"),
        NameRule(_LAYER + r"output\.LayerNorm\.beta", "blocks.{n}.mlp_norm.bias"),
    ),
    linear=(
        *(f"encoder.layer.{{n}}.attention.self.{name}" for name in ("query", "key", "value")),
        *(f"encoder.layer.{{n}}.{name}.dense" for name in ("attention.output", "intermediate", "output")),
    ),
    ignored=(r"(?:\w+\.)?embeddings\.position_ids", r"(?:\w+\.)?pooler\..*", r"cls\..*", r"lm_head\..*"),
)
"""Names with one prefix or none. The oldest checkpoints call a norm's parameters gamma and beta. Heads for training and
the pooler, which no embedding model uses, are left out."""
CLASSIFIER_NAMES: Final = replace(
    NAMES,
    rules=(
        *NAMES.rules,
        NameRule(r"(?:\w+\.)?pooler\.dense" + _LEARNED, "classifier.dense.{tensor}"),
        NameRule(r"classifier" + _LEARNED, "classifier.output.{tensor}"),
    ),
    ignored=tuple(name for name in NAMES.ignored if "pooler" not in name),
)
CLASSIFIER: Final = HeadShape(dense=True, bias=True, tensors=r"(?:\w+\.)?pooler\..*|classifier\..*")
"""BERT classifies the state of its first token behind its pooler."""
ROBERTA_CLASSIFIER_NAMES: Final = replace(
    NAMES,
    rules=(
        *NAMES.rules,
        NameRule(r"classifier\.dense" + _LEARNED, "classifier.dense.{tensor}"),
        NameRule(r"classifier\.out_proj" + _LEARNED, "classifier.output.{tensor}"),
    ),
)
ROBERTA_CLASSIFIER: Final = HeadShape(dense=True, bias=True, tensors=r"classifier\..*")
TOKEN_CLASSIFIER_NAMES: Final = replace(
    NAMES, rules=(*NAMES.rules, NameRule(r"classifier" + _LEARNED, "classifier.output.{tensor}"))
)
TOKEN_CLASSIFIER: Final = HeadShape(dense=False, bias=True, tensors=r"classifier\..*", by_token=True)
"""All three label each token by its state alone."""


def read_bert(config: Config, generation: Config) -> EncoderSpec:
    return _common(config, first_position=0)


def read_roberta(config: Config, generation: Config) -> EncoderSpec:
    """XLM-RoBERTa too."""
    padding = config.get("pad_token_id", 1)
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ModelError(
            "pad_token_id", f"config.json must state a token id: positions begin after it; got {shown(padding)}"
        )
    return _common(config, first_position=padding + 1)


def _common(config: Config, first_position: int) -> EncoderSpec:
    for name in ("is_decoder", "add_cross_attention"):
        if flag(config, name, False):
            raise ModelError(name, "an encoder that reads in one direction or another's states is not supported")
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ModelError("position_embedding_type", f"{shown(kind)} is not supported; supported: absolute")
    hidden, num_heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    if hidden % num_heads:
        raise ModelError("num_attention_heads", f"{num_heads} do not divide hidden_size {hidden}")
    positions = integer(config, "max_position_embeddings")
    if positions <= first_position:
        raise ModelError("max_position_embeddings", f"{positions} leave no position after the padding's")
    return EncoderSpec(
        architecture=config["architectures"][0],
        vocab_size=integer(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=integer(config, "intermediate_size"),
        num_layers=num_layers(config),
        num_heads=num_heads,
        norm_eps=number(config, "layer_norm_eps", 1e-12),
        activation=activation(config, "gelu"),
        num_positions=positions,
        first_position=first_position,
        num_token_types=integer(config, "type_vocab_size", 2),
        max_model_len=positions - first_position,
        dtype=checkpoint_dtype(config),
        pooling=("cls",),  # without the files of sentence-transformers: the token that both families put first for this
    )
