"""Several residual streams, of which a layer works on one (AltUp; Baykal et al., 2023), and a learned residual (LAuReL;
Menghani et al., 2024)."""

from typing import Final

import torch
from torch import nn
from torch.nn.functional import linear

from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.linear import ReplicatedLinear
from quire.worker.layers.norm import build_norm
from quire.worker.specs.spec import NormSpec, StreamsSpec
from quire.worker.weights.parts import Part, whole
from quire.worker.weights.shard import ShardedModule

LEAST_SQUARE: Final = 1e-5
"""Mean square below which a stream is not made larger."""


class Streams(nn.Module):
    """Both ends of the streams: they are made of the embeddings, and the last hidden state of them."""

    def __init__(self, context: BuildContext, hidden: int, spec: StreamsSpec) -> None:
        super().__init__()
        others = tuple(map(str, range(spec.count - 1)))
        self.spread = ReplicatedLinear(context.at("spread"), hidden, hidden, names=others)
        self.gather = nn.ModuleList(ReplicatedLinear(context.at(f"gather.{n}"), hidden, hidden) for n in others)

    def split(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] -> [T, streams, hidden], the first of which is x"""
        others = self.spread(x, batch).view(len(x), -1, x.shape[1])
        return torch.cat((x[:, None], _as_large(others, x[:, None])), 1)

    def joined(self, streams: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, streams, hidden] -> their mean [T, hidden], each as large as the first"""
        first, *others = streams.unbind(1)
        products = [product(one.contiguous(), batch) for product, one in zip(self.gather, others, strict=True)]
        return torch.cat((first[:, None], _as_large(torch.stack(products, 1), first[:, None])), 1).mean(1)


def _as_large(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """x with the mean square of the example, each over the last dimension."""
    wanted, own = (one.float().square().mean(-1, keepdim=True) for one in (example, x))
    return (x.float() * (wanted / own.clamp(min=LEAST_SQUARE)).sqrt()).to(x.dtype)


class AltUp(ShardedModule):
    """One layer's predictions and corrections of the streams, by coefficients that hang on the active one."""

    def __init__(self, context: BuildContext, hidden: int, spec: StreamsSpec, norm: NormSpec) -> None:
        super().__init__()
        self.spec = spec
        self.norm = build_norm(context, hidden, norm)
        shapes = {
            "router": (spec.count, hidden),
            "prediction": (spec.count**2, spec.count),
            "correction": (spec.count, spec.count),
            "gains": (hidden,),
        }
        for name, shape in shapes.items():
            self.declare(name, context.dtype, (Part("", tuple(map(whole, shape))),))

    def predict(self, streams: torch.Tensor) -> torch.Tensor:
        """[T, streams, hidden] -> the same shape: to each is added what it takes of all"""
        count = self.spec.count
        taken = linear(self._modalities(self.active(streams)), self.stored("prediction")).view(-1, count, count)
        return torch.baddbmm(streams, taken, streams)

    def correct(self, predicted: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """The predictions [T, streams, hidden] and what the layer made of the active one, [T, hidden] -> the streams"""
        counted = 1 + linear(self._modalities(made), self.stored("correction"))
        return predicted + counted[:, :, None] * (made - self.active(predicted))[:, None]

    def active(self, streams: torch.Tensor) -> torch.Tensor:
        """[T, streams, hidden] -> the one that the layer works on, [T, hidden]"""
        return streams[:, self.spec.active].contiguous()

    def choosing(self, streams: torch.Tensor) -> torch.Tensor:
        """[T, streams, hidden] -> what chooses from the layer's own input, [T, hidden]"""
        active = self.active(streams)
        return active * self.stored("gains") if self.spec.scaled else active

    def _modalities(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, streams], each in (-1, 1)"""
        routed = linear(self.norm(x), self.stored("router"))
        return torch.tanh(routed.float() / x.shape[1]).to(x.dtype)


class Laurel(nn.Module):
    """A residual that is learned: x, and of it a product of low rank, normed."""

    def __init__(self, context: BuildContext, hidden: int, rank: int, norm: NormSpec) -> None:
        super().__init__()
        self.left = ReplicatedLinear(context.at("left"), hidden, rank)
        self.right = ReplicatedLinear(context.at("right"), rank, hidden)
        self.norm = build_norm(context, hidden, norm)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]"""
        out: torch.Tensor = x + self.norm(self.right(self.left(x, batch), batch))
        return out
