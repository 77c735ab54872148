"""The three ways in which a call to a sandbox fails."""

from quire.proto.api import RequestError


class SandboxTimeout(Exception):
    """The call computed for longer than it may."""


class SandboxCrashed(Exception):
    """The call made the child die, run out of memory or answer what is no answer."""


class SandboxLost(RequestError):
    """The child failed, and not because of the call: the same call may succeed with the next child."""

    def __init__(self, name: str, why: str) -> None:
        message = f"the server's {name} {why}; this request is not at fault, send it again"
        super().__init__("RECOVERING", message, retry_after_seconds=1.0)
        self.why = f"{name} {why}"
