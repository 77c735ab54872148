"""Answers to the questions a frontend may ask."""

from collections.abc import Callable

from quire.proto.messages.introspection import (
    AskExplanation,
    AskFigures,
    AskLoad,
    AskStatus,
    Explanation,
    Figure,
    Figures,
    Load,
    Status,
)
from quire.scheduler.core.core import Core
from quire.scheduler.introspection.explain import explain
from quire.scheduler.introspection.load import load
from quire.scheduler.introspection.metrics import distributions, figures
from quire.scheduler.introspection.status import status
from quire.scheduler.introspection.view import view_of

Question = AskLoad | AskFigures | AskStatus | AskExplanation


def answer(
    ask: Question, core: Core, now: float, outside: Callable[[], tuple[Figure, ...]]
) -> Load | Figures | Status | Explanation:
    """The answer as of `now`; `outside` yields the figures of the process and its sockets, which no core can see."""
    view = view_of(core, now)
    match ask:
        case AskLoad():
            return load(ask.query, view)
        case AskFigures():
            return Figures(ask.query, (*figures(view), *outside()), distributions(view))
        case AskStatus():
            return status(ask, view)
        case AskExplanation():
            return explain(ask, view)
