"""The encoder's spec: the config.json of BERT and RoBERTa read into one frozen value."""

from dataclasses import dataclass
from typing import Final

import torch

from quire.kernels.linear.activation import Gate
from quire.worker.memory.kv_cache import KVLayout
from quire.worker.models.fields import Config, flag, integer, number
from quire.worker.models.pooling import Pooling
from quire.worker.models.spec import ACTIVATIONS, refuse_unsupported, stated_dtype
from quire.worker.weights.shard import ModelError

DEFAULT_POOLING: Final[Pooling] = "cls"
"""Pooling of an encoder without the files of sentence-transformers: the token that both families put first for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    activation: Gate
    num_positions: int
    """Rows of the table of positions."""
    first_position: int
    """The row of a prompt's first token: RoBERTa keeps the rows up to its padding id for padding."""
    num_token_types: int
    dtype: torch.dtype
    """Dtype of the checkpoint, as its config says."""
    pooling: Pooling = DEFAULT_POOLING
    eos_token_ids: tuple[int, ...] = ()
    """Empty: nothing is generated."""

    @property
    def whole_prompts(self) -> bool:
        """Every token sees those after it, so a prompt is run in one step."""
        return True

    @property
    def max_model_len(self) -> int:
        """Tokens the positions are made for."""
        return self.num_positions - self.first_position

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """No layer looks at a cache."""
        return ()

    def num_groups(self, group_size: int) -> int:
        """Query heads for each key-value head."""
        return 1

    def kv_layout(self, group_size: int, block_size: int, dtype: torch.dtype) -> KVLayout:
        """Layout of a cache that takes no memory: blocks only account for prompts."""
        return KVLayout(0, self.num_heads // group_size, self.hidden_size // self.num_heads, block_size, dtype)


def bert(config: Config, generation: Config) -> EncoderSpec:
    return _common(config, first_position=0)


def roberta(config: Config, generation: Config) -> EncoderSpec:
    """XLM-RoBERTa too."""
    padding = config.get("pad_token_id", 1)
    if isinstance(padding, bool) or not isinstance(padding, int) or padding < 0:
        raise ModelError(
            "pad_token_id", f"config.json must state a token id: positions begin after it; got {padding!r}"
        )
    return _common(config, first_position=padding + 1)


def _common(config: Config, first_position: int) -> EncoderSpec:
    refuse_unsupported(config)
    for name in ("is_decoder", "add_cross_attention"):
        if flag(config, name, False):
            raise ModelError(name, "an encoder that reads in one direction or another's states is not supported")
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ModelError("position_embedding_type", f"{kind!r} is not supported; supported: absolute")
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
        num_layers=integer(config, "num_hidden_layers"),
        num_heads=num_heads,
        norm_eps=number(config, "layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[config.get("hidden_act", "gelu")],
        num_positions=positions,
        first_position=first_position,
        num_token_types=integer(config, "type_vocab_size", 2),
        dtype=stated_dtype(config),
    )
