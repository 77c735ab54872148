"""The core's event for each message on the request socket. No I/O."""

from quire.proto.messages.requests import Abort, AbortLabels, Drain, FrontendMessage, GroupFailed, GroupLost, Submit
from quire.scheduler.state import events


def event_of(identity: bytes, message: FrontendMessage, *, supervisor: bool) -> events.Event | None:
    """The event, or None for what this peer may not send and for questions, which change nothing."""
    match message:
        case Submit():
            return events.Submitted(identity, message)
        case Abort():
            return events.Aborted(identity, message)
        case AbortLabels():
            return events.LabelsAborted(identity, message)
        case Drain() if supervisor:
            return events.DrainRequested(message.timeout_seconds)
        case GroupLost() if supervisor:
            return events.GroupGone(message.epoch, message.reason)
        case GroupFailed() if supervisor:
            return events.GroupGaveUp(message.reason)
    return None
