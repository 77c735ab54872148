"""Queries to the scheduler that wait for their answers, by number."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, overload

import msgspec

from quire.proto.api import RequestError
from quire.proto.messages.introspection import (
    Answer,
    EndedQuery,
    EndedReply,
    ExplainQuery,
    ExplainReply,
    LoadQuery,
    LoadReply,
    MetricsQuery,
    MetricsReply,
    PrefixQuery,
    PrefixReply,
    StatusQuery,
    StatusReply,
)
from quire.proto.messages.requests import AbortedLabels, AbortLabels

QUERY_SECONDS = 5.0

QueryAnswer = Answer | AbortedLabels


class Queries:
    """Every query gets its answer, or a `RequestError` within `QUERY_SECONDS`."""

    def __init__(self, post: Callable[[msgspec.Struct], None], check_reachable: Callable[[], None]) -> None:
        """`check_reachable` raises the `RequestError` of a query that cannot be sent now."""
        self._post = post
        self._check_reachable = check_reachable
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[QueryAnswer]] = {}

    @overload
    async def ask(self, kind: type[LoadQuery]) -> LoadReply: ...
    @overload
    async def ask(self, kind: type[MetricsQuery]) -> MetricsReply: ...
    @overload
    async def ask(self, kind: type[StatusQuery], after_step: int = -1, blocks: bool = True, /) -> StatusReply: ...
    @overload
    async def ask(self, kind: type[ExplainQuery], label: str, arrival: int = 0, /) -> ExplainReply: ...
    @overload
    async def ask(self, kind: type[EndedQuery], after: int = 0, /) -> EndedReply: ...
    @overload
    async def ask(self, kind: type[PrefixQuery], /) -> PrefixReply: ...
    @overload
    async def ask(self, kind: type[AbortLabels], labels: tuple[str, ...], /) -> AbortedLabels: ...
    async def ask(self, kind: type[Any], *fields: Any) -> QueryAnswer:
        """Send a query; its answer. `fields` are those after the query number. Raises `RequestError` for no answer."""
        self._check_reachable()
        number = next(self._numbers)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        self._post(kind(number, *fields))
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                received: QueryAnswer = await answer
                return received
        except TimeoutError:
            raise RequestError("SCHEDULER_LOST", "the scheduler did not answer", retry_after_seconds=1.0) from None
        finally:
            self._open.pop(number, None)

    def on_answer(self, message: QueryAnswer) -> None:
        """Take an answer; one that nobody waits for any more is dropped."""
        answer = self._open.get(message.query)
        if answer is not None and not answer.done():
            answer.set_result(message)
