"""Layers of ours in the places of the library's: they load, share and multiply their weights as all of ours do."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from quire.worker.batch import ForwardBatch
from quire.worker.build_context import BuildContext
from quire.worker.layers.embedding import Vocabulary
from quire.worker.layers.linear import ColumnLinear, Linear, MergedLinear, ReplicatedLinear, RowLinear
from quire.worker.specs.library.spec import HALVES, LibraryLinear
from quire.worker.weights.parts import Part
from quire.worker.weights.shard import ShardedModule

Shape = tuple[int, ...]


def flat(x: torch.Tensor) -> torch.Tensor:
    """[..., size] -> [T, size], one element behind the other."""
    return x.reshape(-1, x.shape[-1]).contiguous()


class Shaped(nn.Module):
    """A linear layer over inputs of any shape [..., inputs], outside of a step: the library knows of none."""

    def forward(self, x: torch.Tensor, batch: ForwardBatch | None = None) -> torch.Tensor:
        assert isinstance(self, Linear)
        out = self.product(flat(x))
        return out.view(*x.shape[:-1], out.shape[-1])


class WholeLinear(Shaped, ReplicatedLinear):
    """Every rank has it."""


class OutputsLinear(Shaped, ColumnLinear):
    """Each rank makes its share of the outputs."""


class HalvesLinear(Shaped, MergedLinear):
    """Each rank makes its share of either half of the outputs."""


class InputsLinear(Shaped, RowLinear):
    """Each rank multiplies the inputs that it has."""


class GatheredLinear(OutputsLinear):
    """Each rank makes its share of the outputs, and has all of them then."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, axis: str, bias: bool = False) -> None:
        super().__init__(context, inputs, outputs, axis, bias)
        self.group = context.group

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.all_gather(super().product(x))


class OwnInputsLinear(InputsLinear):
    """Each rank multiplies its share of inputs that all ranks have."""

    def __init__(self, context: BuildContext, inputs: int, outputs: int, axis: str, bias: bool = False) -> None:
        super().__init__(context, inputs, outputs, axis, bias)
        self.own = context.share(axis, inputs)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return super().product(x[:, self.own.start : self.own.stop].contiguous())


def build_linear(context: BuildContext, spec: LibraryLinear, axis: str) -> Linear:
    """A layer in the place of the library's; `axis` names what ranks share in messages. Raises ModelError."""
    sizes = context, spec.inputs, spec.outputs
    match spec.dealt:
        case "outputs":
            return OutputsLinear(*sizes, axis, spec.bias)
        case "gathered":
            return GatheredLinear(*sizes, axis, spec.bias)
        case "halves":
            return HalvesLinear(context, spec.inputs, spec.outputs // 2, HALVES, axis, spec.bias)
        case "inputs":
            return InputsLinear(*sizes, axis, spec.bias)
        case "own_inputs":
            return OwnInputsLinear(*sizes, axis, spec.bias)
        case _:
            return WholeLinear(*sizes, spec.bias)


class Looked(nn.Embedding):
    """An embedding whose rows a `Vocabulary` looks up. A subclass of the library's may do more to them."""

    vocabulary: Vocabulary

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # only its type and device mean something
        return self.vocabulary.stored("weight")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.vocabulary.embed(ids.reshape(-1))
        return rows.view(*ids.shape, rows.shape[-1])


def look_up_in(embedding: nn.Embedding, vocabulary: Vocabulary) -> None:
    """Let an embedding of the library's look up there; what its class does besides, like scaling, stays."""
    del embedding._parameters["weight"]
    embedding.__dict__["vocabulary"] = vocabulary
    kind = type(embedding)
    embedding.__class__ = Looked if kind is nn.Embedding else type(kind.__name__, (kind, Looked), {})


class Logits(nn.Module):
    """The product of an output head: hidden states [..., hidden] -> [..., vocab_size], on every rank."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.__dict__["vocabulary"] = vocabulary  # it is a layer of the model, not of this one

    @property
    def weight(self) -> torch.Tensor:
        """Only its type and device mean something."""
        vocabulary: Vocabulary = self.__dict__["vocabulary"]
        return vocabulary.stored("weight")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        vocabulary: Vocabulary = self.__dict__["vocabulary"]
        logits = vocabulary.logits(hidden.reshape(-1, hidden.shape[-1]))
        declared: Any = self._parameters.get("bias")
        logits = logits if declared is None else logits + declared
        return logits.view(*hidden.shape[:-1], logits.shape[-1])


class Declared(ShardedModule):
    """Tensors of a module of the library's that stays: declared here, loaded, and handed to it."""

    def __init__(self, owner: nn.Module, parts: Mapping[str, tuple[Part, ...]], shapes: Mapping[str, Shape]) -> None:
        super().__init__()
        self.__dict__["owner"] = owner  # it is the other's child, not the other way round
        for name, own in parts.items():
            tensor = owner._buffers[name] if name in owner._buffers else owner._parameters[name]
            assert tensor is not None
            self.declare(name, tensor.dtype, own, shapes[name])

    def finish(self) -> None:
        owner: nn.Module = self.__dict__["owner"]
        for name in self.parts:
            loaded = self.get_parameter(name)
            if name in owner._buffers:
                owner._buffers[name] = loaded.data
            else:
                owner._parameters[name] = loaded
