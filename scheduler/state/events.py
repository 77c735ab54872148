"""Events that the core takes and instructions that it gives. Data only."""

from dataclasses import dataclass

from quire.proto.messages.introspection import Answer
from quire.proto.messages.message import EngineState
from quire.proto.messages.plans import GroupFacts, StepAck, StepResult
from quire.proto.messages.requests import Abort, AbortedLabels, AbortLabels, ModelFacts, Outputs, Submit
from quire.proto.transport.wire import Frames


@dataclass(frozen=True, slots=True)
class Submitted:
    frontend: bytes
    submit: Submit


@dataclass(frozen=True, slots=True)
class Aborted:
    frontend: bytes
    abort: Abort


@dataclass(frozen=True, slots=True)
class LabelsAborted:
    frontend: bytes
    abort: AbortLabels


@dataclass(frozen=True, slots=True)
class FrontendLost:
    """A frontend's lease ended: its requests are aborted, and nothing is sent to it."""

    frontend: bytes


@dataclass(frozen=True, slots=True)
class GroupReady:
    """All ranks of a new epoch are ready and agree on the facts."""

    epoch: int
    group: GroupFacts
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class GroupGone:
    """The group of this epoch is dead: what ran is requeued with its emitted tokens, cache and fences are dropped."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupGaveUp:
    """No group will come back: every live request ends UNAVAILABLE."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDone:
    result: StepResult


@dataclass(frozen=True, slots=True)
class StepAcked:
    ack: StepAck


@dataclass(frozen=True, slots=True)
class DrainRequested:
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: deadlines and the drain's end are checked."""


Event = (
    Submitted
    | Aborted
    | LabelsAborted
    | FrontendLost
    | GroupReady
    | GroupGone
    | GroupGaveUp
    | StepDone
    | StepAcked
    | DrainRequested
    | Tick
)


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Broadcast these frames, an encoded `StepPlan`, to every rank of the epoch."""

    epoch: int
    step: int
    frames: Frames


@dataclass(frozen=True, slots=True)
class SendOutputs:
    frontend: bytes
    outputs: Outputs


@dataclass(frozen=True, slots=True)
class Reply:
    frontend: bytes
    message: Answer | AbortedLabels


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Send every peer of the request socket a new `Welcome`."""

    state: EngineState
    detail: str


@dataclass(frozen=True, slots=True)
class ReportDrained:
    num_ended: int


Instruction = SendPlan | SendOutputs | Reply | ChangeState | ReportDrained
