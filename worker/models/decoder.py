"""The decoder-only transformer: one definition for every architecture a ModelSpec can describe."""

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from quire.worker.batch import Embedded, ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.layer_inputs import LayerInputs
from quire.worker.layers.norm import build_norm
from quire.worker.layers.rotary import Rotary
from quire.worker.layers.streams import Streams
from quire.worker.memory.kv_cache import KVCache
from quire.worker.models.block import Block
from quire.worker.models.classifier import Classifier
from quire.worker.models.streamed_block import StreamedBlock
from quire.worker.models.vision.build import build_tower
from quire.worker.specs.spec import ModelSpec


class Decoder(nn.Module):
    """Embedding, a stack of blocks, a last norm, and a head of tokens or of labels; an embedding model has neither."""

    def __init__(self, spec: ModelSpec, context: BuildContext) -> None:
        super().__init__()
        self.spec = spec
        has_head, tied = spec.pooling is None, spec.tied_embeddings
        self.embedding = Vocabulary(
            context.at("embedding"),
            spec.vocab_size,
            spec.hidden_size,
            multiplied=tied and has_head,
            scale=_rounded(spec.embedding_scale, context.dtype) / spec.residual_scale,
        )
        # the residual sum is kept divided by what is added to it is multiplied by: norms, but for eps, do not notice
        norm = replace(spec.norm, eps=spec.norm.eps / spec.residual_scale**2)
        block = Block if spec.streams is None else partial(StreamedBlock, streams=spec.streams)
        self.blocks = nn.ModuleList(
            block(context.at(f"blocks.{number}"), spec.hidden_size, norm, spec.norm, layer)
            for number, layer in enumerate(spec.layers)
        )
        self.streams: Streams | None = None
        if spec.streams is not None:
            self.streams = Streams(context.at("streams"), spec.hidden_size, spec.streams)
        self.layer_inputs: LayerInputs | None = None
        if (given := spec.layers[0].input) is not None:
            inputs = context.at("layer_inputs")
            self.layer_inputs = LayerInputs(inputs, spec.hidden_size, len(spec.layers), given, norm)
        self.norm = build_norm(context, spec.hidden_size, norm)
        self.head: Vocabulary | None = None
        if has_head and not tied:
            self.head = Vocabulary(context.at("head"), spec.vocab_size, spec.hidden_size, looked_up=False)
        self.classifier: Classifier | None = None
        if spec.head is not None:
            self.classifier = Classifier(spec.head, context, spec.hidden_size, spec.logit_scale, spec.logit_cap)
        self.vision = None if spec.vision is None else build_tower(spec.vision, context.at("vision"))
        self._deepened = 0 if spec.vision is None else spec.vision.num_deepened
        """Layers, from the first on, behind which items' rows have something to add."""
        ropes = [layer.attention.rope for layer in spec.layers]
        distinct = list(dict.fromkeys(ropes))
        self.rotaries = [Rotary(rope, context.device) for rope in distinct]
        self._rope_of_layer = [distinct.index(rope) for rope in ropes]
        sources = [layer.attention.reads for layer in spec.layers]
        keeping = [number for number, source in enumerate(sources) if source is None]
        self._cache_of_layer = [keeping.index(n if source is None else source) for n, source in enumerate(sources)]
        """Place in the cache of the layer that each one reads, which is its own unless it keeps none."""

    def forward(self, batch: ForwardBatch, cache: KVCache, embedded: Embedded | None = None) -> torch.Tensor:
        """Run the step's tokens and write their keys and values to the cache -> hidden states [T, hidden]."""
        rotations = [rotary.rotation(batch.positions) for rotary in self.rotaries]
        x, residual = self.embedding.embed(batch.token_ids, embedded), None
        given = None if self.layer_inputs is None else self.layer_inputs(batch.token_ids, x, batch, embedded).unbind(1)
        if self.streams is not None:
            x = self.streams.split(x, batch)
        places = zip(self.blocks, self._rope_of_layer, self._cache_of_layer, strict=True)
        for number, (block, rope, place) in enumerate(places):
            own = None if given is None else given[number]
            x, residual = block(x, residual, rotations[rope], batch, cache.layers[place], own)
            if embedded is not None and number < self._deepened:
                x = embedded.added_to(x, number)
        if self.streams is not None:
            x = self.streams.joined(x, batch)
        return self.norm.add(x, residual)[0] if residual is not None else self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `forward`'s result, [S, hidden] -> [S, vocab_size]: complete and equal on every rank."""
        logits, cap = self._vocabulary.logits(hidden), self.spec.logit_cap
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def best(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest tokens of such rows, int64 [S], and whether each row's logits are finite, bool [S].

        Neither their scale nor their cap changes which is the likeliest.
        """
        return self._vocabulary.best(hidden)

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.embedding if self.head is None else self.head

    @property
    def weight_bytes(self) -> int:
        """Memory of this rank's weights."""
        return sum(parameter.nbytes for parameter in self.parameters())


def _rounded(scale: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(scale, dtype=dtype))
