"""The encoder's spec: the config.json of BERT and its kin read into one frozen value."""

from dataclasses import dataclass

from quire.proto.messages.heads import HeadFacts
from quire.worker.fields import DtypeName, Gate
from quire.worker.specs.head_spec import HeadSpec
from quire.worker.specs.sentence.pooling import Pooling
from quire.worker.specs.sentence.stages import StageSpec
from quire.worker.specs.spec import LayerKV
from quire.worker.weights.parts import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """An encoder with learned positions, whose layers are all alike. Implements `quire.worker.specs.spec.Spec`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    norm_eps: float
    activation: Gate
    num_positions: int
    """Rows of the table of positions."""
    first_position: int
    """The row of a prompt's first token: RoBERTa keeps the rows up to its padding id for padding."""
    num_token_types: int
    max_model_len: int
    """Tokens of the longest prompt: those that the positions are made for, or fewer."""
    dtype: DtypeName
    """Dtype of the checkpoint, as its config says."""
    pooling: Pooling
    stages: tuple[StageSpec, ...] = ()
    scored: HeadFacts | None = None
    head: HeadSpec | None = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Empty: nothing is generated."""
        return ()

    @property
    def dealing(self) -> "EncoderSpec":
        """It has no experts that could be dealt to ranks. Raises ModelError."""
        raise ModelError("enable_expert_parallel", f"{self.architecture} has no experts; leave it out")

    @property
    def whole_prompts(self) -> bool:
        """Every token sees those after it, so a prompt is run in one step."""
        return True

    @property
    def num_position_axes(self) -> int:
        """One: positions are learned."""
        return 1

    def kv_layers(self, group_size: int) -> tuple[LayerKV, ...]:
        """Empty: no layer keeps anything."""
        return ()
