"""Answers to the questions a frontend may ask."""

from quire.proto.introspection import (
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
from quire.scheduler.explain import explain
from quire.scheduler.figures import distributions, figures
from quire.scheduler.load import load
from quire.scheduler.status import status
from quire.scheduler.view import View

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
