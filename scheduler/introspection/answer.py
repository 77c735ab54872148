"""Answers to the questions a frontend may ask."""

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
from quire.scheduler.introspection.explain import explain
from quire.scheduler.introspection.metrics import distributions, figures
from quire.scheduler.introspection.load import load
from quire.scheduler.introspection.status import status
from quire.scheduler.introspection.view import View

Question = AskLoad | AskFigures | AskStatus | AskExplanation


def answer(ask: Question, view: View, outside: tuple[Figure, ...]) -> Load | Figures | Status | Explanation:
    """`outside`: figures of the process and its sockets, which the core cannot see."""
    match ask:
        case AskLoad():
            return load(ask.query, view)
        case AskFigures():
            return Figures(ask.query, (*figures(view), *outside), distributions(view))
        case AskStatus():
            return status(ask, view)
        case AskExplanation():
            return explain(ask, view)
