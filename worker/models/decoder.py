"""The decoder-only transformer: one definition for every architecture a ModelSpec can describe."""

import torch
from torch import nn

from quire.kernels.attention.attention import AttentionRule
from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.attention import Attention
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.mlp import GatedMLP
from quire.worker.layers.norm import RMSNorm
from quire.worker.layers.rotary import Rotary
from quire.worker.memory.kv_cache import KVCache, LayerCache
from quire.worker.models.spec import ModelSpec


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm. The residual sum travels apart, so each norm adds to it."""

    def __init__(self, context: BuildContext, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.attention = Attention(
            context.at("attention"),
            spec.hidden_size,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            AttentionRule(spec.head_dim**-0.5, spec.sliding_windows[layer]),
            qkv_bias=spec.qkv_bias,
            output_bias=spec.attention_output_bias,
            norm_eps=spec.norm_eps if spec.qk_norm else None,
        )
        self.mlp_norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.mlp = GatedMLP(context.at("mlp"), spec.hidden_size, spec.intermediate_size, spec.mlp_bias, spec.activation)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        cache: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x, residual) -> (x, residual), both [T, hidden]; the hidden state between blocks is their sum."""
        x, residual = self.attention(x, residual, self.attention_norm, rotation, batch, cache)
        x, residual = self.mlp(x, residual, self.mlp_norm, batch)
        return x, residual


class Decoder(nn.Module):
    """Embedding, a stack of blocks, a last norm, and the head, which an embedding model does without."""

    def __init__(self, spec: ModelSpec, context: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        has_head, tied = spec.pooling is None, spec.tied_embeddings
        self.embedding = Vocabulary(
            context.at("embedding"), spec.vocab_size, spec.hidden_size, multiplied=tied and has_head
        )
        self.blocks = nn.ModuleList(
            Block(context.at(f"blocks.{layer}"), spec, layer) for layer in range(spec.num_layers)
        )
        self.norm = RMSNorm(context, spec.hidden_size, spec.norm_eps)
        self.head: Vocabulary | None = None
        if has_head and not tied:
            self.head = Vocabulary(context.at("head"), spec.vocab_size, spec.hidden_size, looked_up=False)
        self.rotary = Rotary(spec.rope, context.device)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Run the step's tokens and write their keys and values to the cache -> hidden states [T, hidden]."""
        rotation = self.rotary(batch.positions)
        x, residual = self.embedding.embed(batch.token_ids), None
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x, residual = block(x, residual, rotation, batch, layer)
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
