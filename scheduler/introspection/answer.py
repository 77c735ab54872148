"""Answers to the questions that a frontend may send."""

from collections.abc import Callable

from quire.proto.messages.introspection import (
    Answer,
    EndedQuery,
    EndedReply,
    ExplainQuery,
    Figure,
    LoadQuery,
    LoadReply,
    MetricsQuery,
    MetricsReply,
    PrefixQuery,
    Question,
    StatusQuery,
)
from quire.scheduler.core.core import Core
from quire.scheduler.introspection.explain import explain
from quire.scheduler.introspection.load import load
from quire.scheduler.introspection.metrics import distributions, metrics
from quire.scheduler.introspection.prefixes import prefixes
from quire.scheduler.introspection.status import status
from quire.scheduler.introspection.view import view_of


def answer(question: Question, core: Core, now: float, process_metrics: Callable[[], tuple[Figure, ...]]) -> Answer:
    """The answer as of `now`. `process_metrics` gives what the core cannot see: of the process and its sockets."""
    view = view_of(core, now)
    match question:
        case LoadQuery():
            return LoadReply(question.query, load(view))
        case MetricsQuery():
            return MetricsReply(question.query, (*metrics(view), *process_metrics()), distributions(view))
        case StatusQuery():
            return status(question, view)
        case ExplainQuery():
            return explain(question, view)
        case EndedQuery():
            ended = view.live_requests.ended
            return EndedReply(question.query, now, ended.count, ended.after(question.after))
        case PrefixQuery():
            return prefixes(question, view)
