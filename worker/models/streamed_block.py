"""A block of a decoder that has several residual streams and works on one of them."""

import torch

from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.rotary import Rotation
from quire.worker.layers.streams import AltUp, Laurel
from quire.worker.memory.kv_cache import LayerCache
from quire.worker.models.block import Block
from quire.worker.specs.spec import LayerSpec, NormSpec, StreamsSpec


class StreamedBlock(Block):
    """The parts of a block, norms around both, wired to the streams: a learned residual joins the attention's, and what
    the layer gets of its own is added to all streams but the first."""

    def __init__(
        self,
        context: BuildContext,
        hidden: int,
        norm: NormSpec,
        qk_norm: NormSpec,
        layer: LayerSpec,
        streams: StreamsSpec,
    ) -> None:
        super().__init__(context, hidden, norm, qk_norm, layer)
        self.altup = AltUp(context.at("altup"), hidden, streams, norm)
        self.laurel = Laurel(context.at("laurel"), hidden, streams.laurel_rank, norm)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        batch: ForwardBatch,
        cache: LayerCache,
        given: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The streams [T, streams, hidden] -> the same shape; there is no residual beside them, before or behind."""
        assert self.attention_norm is not None
        assert self.attention_end_norm is not None
        assert self.mlp_end_norm is not None
        predicted = self.altup.predict(x)
        active = self.altup.active(predicted)
        normed = self.attention_norm(active)
        mixed, _ = self.attention(normed, None, None, rotation, batch, cache)
        total = (active + self.attention_end_norm(mixed) + self.laurel(normed, batch)) * 2**-0.5
        fed, total = self.mlp(total, None, self.mlp_norm, batch)
        streams = self.altup.correct(predicted, total + self.mlp_end_norm(fed))
        if self.input is not None:
            streams[:, 1:] += self.input(self.altup.choosing(streams), given, batch)[:, None]
        return streams, residual
