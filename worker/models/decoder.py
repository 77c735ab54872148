"""The decoder-only transformer: one definition for every architecture a ModelSpec can describe."""

import torch
from torch import nn

from quire.kernels.attention.attention import AttentionRule
from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.attention import Attention
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import RMSNorm
from quire.worker.layers.rotary import Rotary, Rotation
from quire.worker.memory.kv_cache import KVCache, LayerCache
from quire.worker.models.classifier import Classifier
from quire.worker.models.vision.build import build_tower
from quire.worker.specs.spec import LayerSpec, ModelSpec


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm. The residual sum travels apart, so each norm adds to it."""

    def __init__(self, context: BuildContext, hidden: int, norm_eps: float, layer: LayerSpec) -> None:
        super().__init__()
        attention, feed_forward = layer.attention, layer.feed_forward
        self.attention_norm = RMSNorm(context, hidden, norm_eps)
        self.attention = Attention(
            context.at("attention"),
            hidden,
            attention.num_heads,
            attention.num_kv_heads,
            attention.head_dim,
            AttentionRule(attention.head_dim**-0.5, attention.window),
            qkv_bias=attention.qkv_bias,
            output_bias=attention.output_bias,
            norm_eps=norm_eps if attention.qk_norm else None,
        )
        self.mlp_norm = RMSNorm(context, hidden, norm_eps)
        self.mlp = GatedMLP(
            context.at("mlp"), hidden, feed_forward.intermediate_size, feed_forward.bias, feed_forward.activation
        )

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        batch: ForwardBatch,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, residual) -> (x, residual), both [T, hidden]; the hidden state between blocks is their sum."""
        x, residual = self.attention(x, residual, self.attention_norm, rotation, batch, cache)
        x, residual = self.mlp(x, residual, self.mlp_norm, batch)
        return x, residual


class Decoder(nn.Module):
    """Embedding, a stack of blocks, a last norm, and the head: of tokens, or of labels; an embedding model has neither."""

    def __init__(self, spec: ModelSpec, context: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        has_head, tied = spec.pooling is None, spec.tied_embeddings
        self.embedding = Vocabulary(
            context.at("embedding"), spec.vocab_size, spec.hidden_size, multiplied=tied and has_head
        )
        self.blocks = nn.ModuleList(
            Block(context.at(f"blocks.{number}"), spec.hidden_size, spec.norm_eps, layer)
            for number, layer in enumerate(spec.layers)
        )
        self.norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.head: Vocabulary | None = None
        if has_head and not tied:
            self.head = Vocabulary(context.at("head"), spec.vocab_size, spec.hidden_size, looked_up=False)
        self.classifier = None if spec.head is None else Classifier(spec.head, context, spec.hidden_size)
        self.vision = None if spec.vision is None else build_tower(spec.vision, context.at("vision"))
        self._deepened = 0 if spec.vision is None else spec.vision.num_deepened
        """Layers, from the first on, behind which items' rows have something to add."""
        ropes = [layer.attention.rope for layer in spec.layers]
        distinct = list(dict.fromkeys(ropes))
        self.rotaries = [Rotary(rope, context.device) for rope in distinct]
        self._rope_of_layer = [distinct.index(rope) for rope in ropes]

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        """Run the step's tokens and write their keys and values to the cache -> hidden states [T, hidden]."""
        rotations = [rotary.rotation(batch.positions) for rotary in self.rotaries]
        x, residual = self.embedding.embed(batch.token_ids, embedded), None
        for number, (block, rope, layer) in enumerate(zip(self.blocks, self._rope_of_layer, cache.layers, strict=True)):
            x, residual = block(x, residual, rotations[rope], batch, layer)
            if embedded is not None and number < self._deepened:
                x = embedded.added_to(x, number)
        return self.norm.add(x, residual)[0] if residual is not None else self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `forward`'s result, [S, hidden] -> [S, vocab_size]: complete and equal on every rank."""
        return self._vocabulary.logits(hidden)

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest tokens of such rows, int64 [S], and whether each row's logits are finite, bool [S]."""
        return self._vocabulary.best(hidden)

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.embedding if self.head is None else self.head

    @property
    def weight_bytes(self) -> int:
        """Memory of this rank's weights."""
        return sum(parameter.nbytes for parameter in self.parameters())
