"""Answers to the questions a frontend may ask."""

from collections.abc import Callable

from quire.proto.messages.introspection import (
    ExplainQuery,
    ExplainReply,
    Figure,
    LoadQuery,
    LoadReply,
    MetricsQuery,
    MetricsReply,
    StatusQuery,
    StatusReply,
)
from quire.scheduler.core.core import Core
from quire.scheduler.introspection.explain import explain
from quire.scheduler.introspection.load import load
from quire.scheduler.introspection.metrics import distributions, figures
from quire.scheduler.introspection.status import status
from quire.scheduler.introspection.view import view_of

Question = LoadQuery | MetricsQuery | StatusQuery | ExplainQuery


def answer(
    ask: Question, core: Core, now: float, outside: Callable[[], tuple[Figure, ...]]
) -> LoadReply | MetricsReply | StatusReply | ExplainReply:
    """The answer as of `now`; `outside` yields the figures of the process and its sockets, which no core can see."""
    view = view_of(core, now)
    match ask:
        case LoadQuery():
            return LoadReply(ask.query, load(view))
        case MetricsQuery():
            return MetricsReply(ask.query, (*figures(view), *outside()), distributions(view))
        case StatusQuery():
            return status(ask, view)
        case ExplainQuery():
            return explain(ask, view)
