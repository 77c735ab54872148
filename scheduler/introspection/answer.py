"""Answers to the questions that a frontend may send."""

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
from quire.scheduler.introspection.metrics import distributions, metrics
from quire.scheduler.introspection.status import status
from quire.scheduler.introspection.view import view_of

Question = AskLoad | AskFigures | AskStatus | AskExplanation


def answer(
    question: Question, core: Core, now: float, process_metrics: Callable[[], tuple[Figure, ...]]
) -> Load | Figures | Status | Explanation:
    """The answer as of `now`. `process_metrics` gives what the core cannot see: of the process and its sockets."""
    view = view_of(core, now)
    match question:
        case AskLoad():
            return load(question.query, view)
        case AskFigures():
            return Figures(question.query, (*metrics(view), *process_metrics()), distributions(view))
        case AskStatus():
            return status(question, view)
        case AskExplanation():
            return explain(question, view)
