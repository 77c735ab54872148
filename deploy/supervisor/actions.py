"""Actions that the keeper of an engine asks for. Data only; `SupervisedEngine` carries them out."""

from dataclasses import dataclass

from quire.deploy.supervisor.process import ProcessRole
from quire.proto.messages.requests import FrontendMessage, Welcome


@dataclass(frozen=True, slots=True)
class StartScheduler:
    """Start the scheduler's process, with a new channel to it."""


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Start the workers of all ranks."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StartFrontend:
    index: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to all processes of a role: they may finish what they do."""

    role: ProcessRole


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to all processes of a role. Their deaths are no events."""

    role: ProcessRole


@dataclass(frozen=True, slots=True)
class KillHung:
    """SIGKILL to one process. Its death is an event like any other."""

    role: ProcessRole
    index: int


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a message to the channel to the scheduler; it waits there until a scheduler takes it."""

    message: FrontendMessage


@dataclass(frozen=True, slots=True)
class Log:
    line: str


@dataclass(frozen=True, slots=True)
class AnnounceReady:
    """The start is over: the engine takes requests."""

    welcome: Welcome


Action = StartScheduler | StartGroup | StartFrontend | Terminate | Kill | KillHung | Send | Log | AnnounceReady
