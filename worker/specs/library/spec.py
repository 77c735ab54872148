"""The spec of a model that runs as the modules of the transformers library, as those modules describe it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from quire.proto.messages.heads import HeadFacts
from quire.worker.fields import Config, DtypeName, Gate
from quire.worker.specs.head_spec import HeadSpec
from quire.worker.specs.sentence.pooling import Mode, Pooling
from quire.worker.specs.sentence.stages import StageSpec
from quire.worker.specs.spec import LayerKV
from quire.worker.weights.names import NameMap, NameRule
from quire.worker.weights.parts import ModelError, Slice, even, vocabulary_share

Dealt = Literal["", "outputs", "gathered", "halves", "inputs", "own_inputs"]
"""The way that ranks share a linear layer: each has it whole; its outputs, which stay apart, are gathered behind it, or
are two halves that are each dealt out; its inputs, which are apart before it, or of which each rank takes its own."""
BY_OUTPUTS: Final[tuple[Dealt, ...]] = ("outputs", "gathered", "halves")
NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""A component of a name that is a number: of a layer, of an expert."""
HALVES: Final = ("0", "1")
"""Names of the parts of a layer whose outputs are two halves."""
BEHIND: Final = ("shell.", "classifier.")
"""Beginnings of paths in the model of what stands behind the trunk: for the logits of tokens, or for labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryLinear:
    """A linear layer of the modules, which is one of ours in their place."""

    outputs: int
    inputs: int
    bias: bool
    dealt: Dealt

    def matrix(self, group_size: int) -> tuple[int, int]:
        """[outputs, inputs] on each of so many ranks, which divide into them."""
        if self.dealt in BY_OUTPUTS:
            return self.outputs // group_size, self.inputs
        return self.outputs, self.inputs // group_size if self.dealt else self.inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryJoin:
    """Linear layers of one module that read the same tensor in every step: one product of ours makes all of them."""

    owner: str
    """Path of the module."""
    names: tuple[str, ...]
    """Names of the layers in it, in the order in which they run."""
    gate: Gate | None = None
    """The module is a gated block, `last(gate(first) * second)` of the two layers; None: it is not."""
    attends: bool = False
    """The module is attention of the three layers, rotated, and nothing else."""
    last: str = ""
    """Name of the layer behind the gate or attention."""

    @property
    def path(self) -> str:
        """Path of the layer of ours, whose parts have the names of the library's."""
        return f"{self.owner}.{'_'.join(self.names)}"

    @property
    def paths(self) -> dict[str, str]:
        """Paths of the layers as they are in the library -> in the model."""
        return {f"{self.owner}.{name}": f"{self.path}.{name}" for name in self.names}


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryAttention:
    """One call of attention in a forward pass; what it stores is a layer of the cache."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Elements of a query and a key; values may have fewer elements, and zeros are stored behind them."""
    window: int | None
    divided: bool
    """Ranks share its heads; else each has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredName:
    """A rule of `NameMap`: the parts that a tensor of the checkpoint fills lie side by side."""

    pattern: str
    target: str
    parts: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrarySpec:
    """A model whose forward pass is the library's. Implements `quire.worker.specs.spec.Spec`."""

    architecture: str
    config: Config
    """config.json, of which the library builds its modules."""
    library: str
    """Name and version of the library."""
    reason: str = ""
    """Reason why the model runs so."""
    vocab_size: int
    hidden_size: int
    """Width of the last hidden state."""
    embedding_size: int
    """Width of an embedding."""
    attentions: tuple[LibraryAttention, ...]
    looks_ahead: bool
    """Tokens see those after them: nothing is cached."""
    first_position: int
    """The position of a prompt's first token."""
    head_pooling: Mode
    """The pooling in front of a head of labels."""
    padding: int
    """The token that such a pooling never takes as a text's last; -1: none."""
    linears: Mapping[str, LibraryLinear]
    """Linear layers by their paths in the model, without the output head."""
    joins: tuple[LibraryJoin, ...]
    """Those of them that share a product."""
    expert_tensors: Mapping[str, int]
    """Paths of tensors that are stored expert by expert, with {} for numbers -> matrices of each expert."""
    dealt_elements: int
    """Elements of other parameters that ranks share: those of experts."""
    other_elements: int
    """Elements of all others, which every rank has."""
    label_elements: int
    """Elements of a head of labels; 0: it has none."""
    tied_embeddings: bool
    undivided: str
    """Reason why several ranks cannot share it; empty: they can."""
    max_model_len: int
    dtype: DtypeName
    eos_token_ids: tuple[int, ...]
    stored_names: tuple[StoredName, ...]
    ignored_names: tuple[str, ...]
    head_names: tuple[str, ...]
    """Patterns of the output head's name."""
    linear_names: tuple[str, ...]
    """The checkpoint's names for linear layers, with {n} for the number of a block."""
    num_blocks: int
    pooling: Pooling | None = None
    stages: tuple[StageSpec, ...] = ()
    scored: HeadFacts | None = None
    head: HeadSpec | None = None

    @property
    def whole_prompts(self) -> bool:
        """A prompt runs in one step, where every token sees those after it."""
        return self.looks_ahead

    @property
    def num_position_axes(self) -> int:
        """One: the modules take plain positions."""
        return 1

    @property
    def dealing(self) -> "LibrarySpec":
        """Ranks share its experts as the library does. Raises ModelError."""
        message = "experts of the library's modules are shared as its plan says; leave it out"
        raise ModelError("enable_expert_parallel", message)

    @property
    def names(self) -> NameMap:
        """Checkpoint tensor -> parameter. A head that the model does without may be stored."""
        rules = [NameRule(one.pattern, one.target, one.parts) for one in self.stored_names]
        ignored = self.ignored_names
        if self.pooling is not None and self.head is None:
            ignored = (*ignored, *(one.pattern for one in rules if one.target.startswith(BEHIND)))
            rules = [one for one in rules if not one.target.startswith(BEHIND)]
        if self.tied_embeddings or self.pooling is not None:
            # of a tied head its bias remains
            left_out = r"\.\w+" if self.pooling is not None else r"\.(?!bias)\w+"
            ignored = (*ignored, *(f"{name}{left_out}" for name in self.head_names))
        tied = tuple(rf"{name}\.weight" for name in self.head_names) if self.is_tied else ()
        return NameMap(tuple(rules), ignored, self.linear_names, tied)

    def expert_rows(self, path: str) -> int:
        """Matrices of each expert that a tensor is stored as; 0: it is stored whole."""
        return self.expert_tensors.get(NUMBER.sub("{}", path), 0)

    def kv_layers(self, group_size: int) -> tuple[LayerKV, ...]:
        """Cached part of each call of attention on each of `group_size` ranks, if any is. Raises ModelError."""
        if self.looks_ahead:
            return ()
        return tuple(self._kv(one, group_size) for one in self.attentions)

    def _kv(self, one: LibraryAttention, group_size: int) -> LayerKV:
        kv_heads = one.num_kv_heads
        if one.divided:
            kv_heads = even("num_key_value_heads", kv_heads, 0, group_size).length
        return LayerKV(kv_heads, one.num_heads // one.num_kv_heads, one.head_dim, one.window)

    def indivisible(self, group_size: int) -> list[ModelError]:
        """Errors for all that so many ranks cannot share."""
        if group_size == 1:
            return []
        if self.undivided:
            return [ModelError("tensor_parallel_size", f"{self.undivided}; use 1")]
        found: dict[str, ModelError] = {}
        for path, one in self.linears.items():
            axis = one.outputs // (2 if one.dealt == "halves" else 1) if one.dealt in BY_OUTPUTS else one.inputs
            if one.dealt and axis % group_size:
                found.setdefault(*_uneven(path.rpartition(".")[2], axis, group_size))
        for attention in self.attentions:
            if attention.divided and attention.num_kv_heads % group_size:
                found.setdefault(*_uneven("num_key_value_heads", attention.num_kv_heads, group_size))
        return list(found.values())

    def matrices(self, group_size: int) -> dict[str, tuple[int, int]]:
        """Matrix of each linear layer on one of so many ranks."""
        found: dict[str, tuple[int, int]] = {}
        for path, one in self.linears.items():
            outputs, inputs = one.matrix(group_size)
            if one.dealt == "halves":
                found |= {f"{path}.{half}": (outputs // 2, inputs) for half in HALVES}
            else:
                found[path] = outputs, inputs
        return found

    def embedding(self, group_size: int) -> tuple[int, int]:
        """Rows of the vocabulary on each rank."""
        share = vocabulary_share(self.vocab_size, 0, group_size, is_tied=self.is_tied)
        return share.length, self.embedding_size

    @property
    def is_tied(self) -> bool:
        """The embedding is the output head, too."""
        return self.pooling is None and self.tied_embeddings

    def shares(self, group_size: int) -> Iterator[tuple[str, Slice]]:
        """The layers that are divided among ranks, and the first one's share: of outputs, or of inputs."""
        for path, one in self.linears.items():
            if one.dealt == "halves":
                yield from ((f"{path}.{half}", even(path, one.outputs // 2, 0, group_size)) for half in HALVES)
            elif one.dealt:
                full = one.outputs if one.dealt in BY_OUTPUTS else one.inputs
                yield path, even(path, full, 0, group_size)

    def others(self, group_size: int) -> int:
        """Elements on each rank of all that is no matrix."""
        biases = sum(one.matrix(group_size)[0] for one in self.linears.values() if one.bias)
        return self.dealt_elements // group_size + self.other_elements + biases + self.wide

    @property
    def wide(self) -> int:
        """Those of them that are float32: a head of labels."""
        return 0 if self.head is None else self.label_elements


def _uneven(axis: str, full: int, size: int) -> tuple[str, ModelError]:
    message = f"{full} cannot be divided among {size} ranks; choose a tensor_parallel_size dividing it"
    return axis, ModelError(axis, message)
