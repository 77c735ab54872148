"""Kinds of norms and of feed-forward blocks that a layer may have, and what it may get beside the hidden state."""

from dataclasses import dataclass
from typing import Literal

from quire.worker.fields import ExpertGate, Gate
from quire.worker.weights.parts import ModelError, Slice, dealt, even, whole

Scores = Literal["softmax", "sigmoid"]
"""Scores made of a router's logits: of all experts together, or of each by itself."""
NormKind = Literal["rms", "rms_wide", "rms_from_one", "layer"]
"""By the root mean square, with gains as they are stored, the same in float32, or stored as what they differ from 1 by,
in float32, too; by mean and variance, without a bias."""
NormPlaces = Literal["before", "after", "both", "parallel"]
"""Places of a block's norms: before each of its parts, behind them, or both; or one before both, which then are
parallel."""


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A norm over the hidden state, or over queries and keys."""

    eps: float
    kind: NormKind = "rms"

    @property
    def is_wide(self) -> bool:
        """Its gains are float32, whatever the model's dtype."""
        return self.kind in ("rms_wide", "rms_from_one")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSpec:
    """The gated feed-forward block of one layer."""

    intermediate_size: int
    activation: Gate = "silu"
    """Activation of the gate."""
    bias: bool = False
    sparsity: float = 0.0
    """Part of the gate that is cut off, were it normally distributed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Gated blocks of which a router chooses a few for each token, by scores made of its logits."""

    num_experts: int
    top_k: int
    """Experts of each token."""
    intermediate_size: int
    """Inner size of each expert."""
    axis: str
    """Its name in config.json."""
    activation: ExpertGate = "silu"
    bias: bool = False
    """The router and both products of an expert have one."""
    renormalize: bool = False
    """The weights of the chosen are divided by their sum."""
    scores: Scores = "softmax"
    biased: bool = False
    """A learned bias is added to the scores for the choice, and to nothing else; the router then is float32."""
    scale: float = 1.0
    """Factor of the weights of the chosen."""
    scales_input: bool = False
    """Inputs of an expert are multiplied by its weight, in place of its outputs; each token has one expert."""
    num_groups: int = 1
    """Groups of experts, side by side, of which a token chooses from the `top_groups` best."""
    top_groups: int = 1
    dealt: bool = False
    """A rank holds some of the experts whole, instead of its share of the inner axis of every one."""
    shared: FeedForwardSpec | None = None
    """One more expert, which takes all tokens."""
    shared_gate: bool = False
    """It counts by the sigmoid of a logit of its own."""
    beside: NormSpec | None = None
    """Experts and the one of all tokens have such norms around them, and the router one before it."""

    @property
    def num_logits(self) -> int:
        """Outputs of the router."""
        return self.num_experts + self.shared_gate

    def num_wide(self, hidden: int) -> int:
        """Elements of the router that are float32 whatever the model's dtype."""
        norms = 4 * hidden if self.beside and self.beside.is_wide else 0
        return norms + (self.num_logits * hidden + self.num_experts if self.biased else 0)

    def shares(self, rank: int, size: int) -> tuple[Slice, Slice]:
        """The experts of one rank, and the inner axis of each that it holds. Raises ModelError."""
        if not self.dealt:
            try:
                return whole(self.num_experts), even(self.axis, self.intermediate_size, rank, size)
            except ModelError as error:
                raise self.or_dealt(error, size) from error
        if self.num_experts < size:
            message = f"{self.num_experts} experts cannot be dealt to {size} ranks; leave it out, or use fewer ranks"
            raise ModelError("enable_expert_parallel", message)
        return dealt(self.num_experts, rank, size), whole(self.intermediate_size)

    def or_dealt(self, error: ModelError, size: int) -> ModelError:
        """The error of so many ranks that cannot share each expert, with the way out where they can be dealt whole."""
        if self.dealt or self.num_experts < size:
            return error
        return ModelError(error.field, f"{error.message}, or set enable_expert_parallel, which deals whole experts")

    def num_idle(self, hidden: int) -> int:
        """Elements of the experts that a token is not sent to."""
        return 3 * (self.num_experts - self.top_k) * hidden * self.intermediate_size

    def num_elements(self, hidden: int, group_size: int) -> int:
        """Elements of the router and of the experts' biases on the first of so many ranks."""
        router = self.num_logits * hidden + (self.num_experts if self.biased else 0)
        router += 4 * hidden + self.num_experts if self.beside else 0
        experts, inner = self.shares(0, group_size)
        biases = self.num_experts + experts.length * (2 * inner.length + hidden) if self.bias else 0
        return router + biases


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputSpec:
    """Input of a layer beside the hidden state: a vector of each token, from which a gate of that chooses."""

    size: int
    vocab_size: int
    pad: int
    """The token whose vector those of images get."""
    activation: Gate
