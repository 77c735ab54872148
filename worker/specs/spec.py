"""Specs: a config.json read into one frozen value; a decoder's says, layer by layer, what differs between them."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from quire.kernels.attention.window import Chunk, Window, window_size
from quire.proto.messages.heads import HeadFacts
from quire.proto.messages.message import Task
from quire.worker.fields import DtypeName
from quire.worker.specs.head_spec import HeadSpec
from quire.worker.specs.kinds.feed_forward import ExpertsSpec as ExpertsSpec
from quire.worker.specs.kinds.feed_forward import FeedForwardSpec as FeedForwardSpec
from quire.worker.specs.kinds.feed_forward import LayerInputSpec as LayerInputSpec
from quire.worker.specs.kinds.feed_forward import NormKind as NormKind
from quire.worker.specs.kinds.feed_forward import NormPlaces as NormPlaces
from quire.worker.specs.kinds.feed_forward import NormSpec as NormSpec
from quire.worker.specs.kinds.rope import RopeSpec
from quire.worker.specs.kinds.streams import StreamsSpec as StreamsSpec
from quire.worker.specs.sentence.pooling import BY_ALL, Pooling, vector_width
from quire.worker.specs.sentence.stages import StageSpec
from quire.worker.specs.vision_spec import VisionSpec
from quire.worker.weights.parts import ModelError, kv_head_share


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Keys and values that one layer keeps of every token on one rank, and who reads them."""

    num_kv_heads: int
    """Heads on this rank: at least one; they are replicated when there are fewer than ranks."""
    queries_per_head: int
    """Query heads that read each of them: fewer where ranks share a head."""
    head_dim: int
    window: int | None
    """Most tokens that a query sees, its own among them; None: the whole context."""
    is_chunked: bool = False
    """It sees those of its chunk: the context is cut into chunks of `window` tokens from its beginning on."""


class Spec(Protocol):
    """A model as the engine sees it: what a start, the tables and the facts need of every kind."""

    @property
    def architecture(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def max_model_len(self) -> int:
        """Tokens the positions are made for, or fewer where a model that embeds is made for shorter texts."""
        ...

    @property
    def dtype(self) -> DtypeName:
        """Dtype of the checkpoint, as its config says."""
        ...

    @property
    def pooling(self) -> Pooling | None:
        """Pooling by which a model makes one vector of a prompt; None: it generates, with an output head."""
        ...

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """The stages behind that vector before it is an embedding, or a score."""
        ...

    @property
    def scored(self) -> HeadFacts | None:
        """Facts of the score that the stages make; None: they make none."""
        ...

    @property
    def head(self) -> HeadSpec | None:
        """The head that makes numbers of labels out of that vector; None: it is the answer itself, an embedding."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def whole_prompts(self) -> bool:
        """Every token sees those after it, so a prompt is run in one step."""
        ...

    @property
    def num_position_axes(self) -> int:
        """Axes of a token's position."""
        ...

    def kv_layers(self, group_size: int) -> tuple[LayerKV, ...]:
        """Cached part of each layer that keeps one, on each of so many ranks; empty: none does. Raises ModelError."""
        ...


def task_of(spec: Spec) -> Task:
    """The work of the model."""
    if spec.pooling is None:
        return "generate"
    if spec.head is not None:
        return spec.head.task
    return "embed" if spec.scored is None else "score"


def embedding_size(spec: Spec) -> int:
    """Numbers of an embedding; 0 for a model that makes none."""
    return vector_width(spec.pooling or (), spec.stages, spec.hidden_size) if task_of(spec) == "embed" else 0


def shares_prefixes(spec: Spec) -> bool:
    """True where equal beginnings of prompts may be computed once: no answer needs every token's hidden state."""
    by_token = spec.head is not None and spec.head.by_token
    return not (spec.whole_prompts or by_token or BY_ALL & {*(spec.pooling or ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of one layer, with queries grouped around key-value heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    """Layers whose ropes are equal share one rotation of a step."""
    window: Window | None = None
    """A token sees itself and the `window - 1` before it, or its chunk up to itself; None: the whole context."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["", "head", "plain", "whole"] = ""
    """Queries and keys are normalised before they are rotated: each head, with or without gains, or all together."""
    value_norm: bool = False
    """Each head of the values is normalised, without a gain."""
    keys_as_values: bool = False
    """Values have no product of their own: they are the keys before these are normalised and rotated."""
    reads: int | None = None
    """Number of the layer whose keys and values it reads; it makes and keeps none."""
    score_scale: float | None = None
    """Factor of the products of queries and keys; None: head_dim ** -0.5."""
    soft_cap: float | None = None
    """Scores become `soft_cap * tanh(score / soft_cap)`."""
    looks_ahead: bool = False
    """The tokens of an image see each other, in both directions."""
    sinks: bool = False
    """Each query head has a logit of its own in the softmax's denominator, so that it may look at nothing."""

    @property
    def products(self) -> str:
        """Those of queries, keys and values that have a matrix of their own, a letter each."""
        return "q" if self.reads is not None else "qk" if self.keys_as_values else "qkv"

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.score_scale is None else self.score_scale

    def kv(self, group_size: int) -> LayerKV:
        """Cached part on each of `group_size` ranks, equally large. ModelError for heads that these cannot share."""
        kv_heads = kv_head_share(self.num_kv_heads, 0, group_size).length
        seen = None if self.window is None else window_size(self.window)
        queries = self.num_heads // group_size // kv_heads
        return LayerKV(kv_heads, queries, self.head_dim, seen, isinstance(self.window, Chunk))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One block of a decoder."""

    attention: AttentionSpec
    feed_forward: FeedForwardSpec | ExpertsSpec
    norms: NormPlaces = "before"
    input: LayerInputSpec | None = None
    scaled: bool = False
    """The hidden state that leaves the layer is multiplied by a number that it holds."""

    @property
    def dense(self) -> tuple[str, FeedForwardSpec] | None:
        """Path in the layer of the feed-forward that every token goes through, and what it is; None: there is none."""
        if isinstance(self.feed_forward, FeedForwardSpec):
            return "mlp", self.feed_forward
        return None if self.feed_forward.shared is None else ("mlp.shared", self.feed_forward.shared)

    def turned_by(self, pair_axes: tuple[int, ...]) -> "LayerSpec":
        """The same, but for the axes of a position by which its rope's pairs turn."""
        return self.with_rope(replace(self.attention.rope, pair_axes=pair_axes))

    @property
    def of_text(self) -> "LayerSpec":
        """The same for text alone: it counts on one axis, and no token sees one behind it."""
        layer = self.turned_by(())
        return replace(layer, attention=replace(layer.attention, looks_ahead=False))

    def growing_by(self, query_beta: float, query_length: int) -> "LayerSpec":
        """The same, but for what queries count by their position."""
        return self.with_rope(replace(self.attention.rope, query_beta=query_beta, query_length=query_length))

    def with_rope(self, rope: RopeSpec) -> "LayerSpec":
        return replace(self, attention=replace(self.attention, rope=rope))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder: an embedding, its layers, a last norm, a head. Implements `Spec`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tied_embeddings: bool
    max_model_len: int
    dtype: DtypeName
    eos_token_ids: tuple[int, ...]
    pooling: Pooling | None = None
    stages: tuple[StageSpec, ...] = ()
    scored: HeadFacts | None = None
    head: HeadSpec | None = None
    vision: VisionSpec | None = None
    """The tower that makes rows of images; None: it reads text alone."""
    embedding_scale: float = 1.0
    """Factor of the embeddings of tokens, in the model's dtype."""
    residual_scale: float = 1.0
    """Factor of what the parts of every block add."""
    logit_scale: float = 1.0
    streams: StreamsSpec | None = None
    """Residual streams; None: there is one."""
    logit_cap: float | None = None
    """Logits become `logit_cap * tanh(logit / logit_cap)`."""
    two_way_prompts: bool = False
    """The tokens of a prompt see each other, so that it runs in one step; what is generated sees back."""

    @property
    def whole_prompts(self) -> bool:
        """A prompt may be run in chunks."""
        return False

    @property
    def num_position_axes(self) -> int:
        """Axes by which the layers' ropes turn."""
        return max(layer.attention.rope.num_axes for layer in self.layers)

    @property
    def text_alone(self) -> "ModelSpec":
        """The same without its tower. Text counts on all axes of its positions alike, so one is enough. Raises
        ModelError."""
        if self.two_way_prompts:
            message = f"prompts of {self.architecture} are read in both directions, beside images alone; leave it out"
            raise ModelError("language_model_only", message)
        return replace(self, vision=None, layers=tuple(layer.of_text for layer in self.layers))

    @property
    def dealing(self) -> "ModelSpec":
        """The same with experts that are dealt to the ranks. Raises ModelError."""
        if not self.experts:
            raise ModelError("enable_expert_parallel", f"{self.architecture} has no experts; leave it out")
        layers = (
            replace(layer, feed_forward=replace(layer.feed_forward, dealt=True))
            if isinstance(layer.feed_forward, ExpertsSpec)
            else layer
            for layer in self.layers
        )
        return replace(self, layers=tuple(layers))

    def within(self, length: int) -> "ModelSpec":
        """The same for contexts of so many tokens: what is meant for longer ones is left out."""
        return replace(
            self, layers=tuple(layer.with_rope(layer.attention.rope.within(length)) for layer in self.layers)
        )

    @property
    def experts(self) -> tuple[ExpertsSpec, ...]:
        """Those of each layer that has some."""
        return tuple(layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, ExpertsSpec))

    @property
    def keeping(self) -> tuple[AttentionSpec, ...]:
        """The attention of layers that keep keys and values, which are before all that read another's."""
        return tuple(layer.attention for layer in self.layers if layer.attention.reads is None)

    def kv_layers(self, group_size: int) -> tuple[LayerKV, ...]:
        """Cached part of each layer that keeps one, on each of `group_size` ranks. Raises ModelError."""
        return tuple(attention.kv(group_size) for attention in self.keeping)
