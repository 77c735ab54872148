"""The encoder of BERT (Devlin et al., 2019) and RoBERTa (Liu et al., 2019): learned positions, norms behind parts."""

import torch
from torch import nn

from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.attention import EncoderAttention
from quire.worker.layers.embedding import Table, Vocabulary
from quire.worker.layers.mlp import MLP
from quire.worker.layers.norm import LayerNorm
from quire.worker.memory.kv_cache import KVCache
from quire.worker.models.classifier import Classifier
from quire.worker.specs.encoder_spec import EncoderSpec


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each added to what came in and then normalised."""

    def __init__(self, context: BuildContext, spec: EncoderSpec) -> None:
        super().__init__()
        self.attention = EncoderAttention(context.at("attention"), spec.hidden_size, spec.num_heads)
        self.attention_norm = LayerNorm(context, spec.hidden_size, spec.norm_eps)
        self.mlp = MLP(context.at("mlp"), spec.hidden_size, spec.intermediate_size, spec.activation)
        self.mlp_norm = LayerNorm(context, spec.hidden_size, spec.norm_eps)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        x = self.attention_norm(self.attention(x, batch), x)
        out: torch.Tensor = self.mlp_norm(self.mlp(x, batch), x)
        return out


class Encoder(nn.Module):
    """Word, position and token type added and normalised, then a stack of blocks."""

    def __init__(self, spec: EncoderSpec, context: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = Vocabulary(context.at("embedding"), spec.vocab_size, spec.hidden_size, multiplied=False)
        self.positions = Table(context, spec.num_positions, spec.hidden_size)
        self.token_types = Table(context, spec.num_token_types, spec.hidden_size)
        self.norm = LayerNorm(context, spec.hidden_size, spec.norm_eps)
        self.blocks = nn.ModuleList(
            EncoderBlock(context.at(f"blocks.{layer}"), spec) for layer in range(spec.num_layers)
        )
        self.classifier = None if spec.head is None else Classifier(spec.head, context, spec.hidden_size)

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        """Run the step's whole prompts -> hidden states [T, hidden]. Nothing is cached."""
        types = self.token_types.stored("weight")[0]
        if batch.token_types is not None and self.spec.num_token_types > 1:
            types = self.token_types(batch.token_types)
        x: torch.Tensor = self.embedding.embed(batch.token_ids, embedded) + types
        x = self.norm(x, self.positions(batch.positions[0] + self.spec.first_position))
        for block in self.blocks:
            x = block(x, batch)
        return x

    @property
    def weight_bytes(self) -> int:
        """Memory of this rank's weights."""
        return sum(parameter.nbytes for parameter in self.parameters())
