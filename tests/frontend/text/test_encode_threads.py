"""Texts are encoded beside the event loop; long ones behind everybody else."""

import asyncio
import os
import threading

from parts.clock import GUARD

from quire.frontend.text.encode_threads import GIVING_WAY_CHARS, NICENESS, SHORT_WORK_CHARS, EncodeThreads
from quire.frontend.text.windows import PIECE, packed
from quire.proto.api import Chat, ChatMessage, ToolCall


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_short_text_does_not_wait_behind_long_ones() -> None:
    async def scenario() -> int:
        pool, release = EncodeThreads(1), threading.Event()
        waiting = [pool.run(GIVING_WAY_CHARS, release.wait) for _ in range(3)]
        try:
            return await asyncio.wait_for(pool.run(10, int, "7"), GUARD)
        finally:
            release.set()
            await asyncio.gather(*waiting)
            pool.close()

    assert asyncio.run(scenario()) == 7


def test_only_the_threads_of_long_texts_give_way_to_others() -> None:
    async def scenario() -> tuple[int, int]:
        pool = EncodeThreads(1)
        found = await pool.run(10, _niceness), await pool.run(GIVING_WAY_CHARS, _niceness)
        pool.close()
        return found

    own = _niceness()
    assert asyncio.run(scenario()) == (own, min(19, max(own, NICENESS)))
    assert _niceness() == own


def test_a_packed_prompt_is_the_same_prompt() -> None:
    for length in (0, 1, PIECE, PIECE + 1, 3 * PIECE):
        assert list(packed(list(range(length)))) == list(range(length))


def test_a_lone_short_text_is_not_sent_to_a_thread_and_a_longer_one_is() -> None:
    async def scenario() -> tuple[int, int]:
        pool = EncodeThreads(1)
        found = (
            await pool.run_single(SHORT_WORK_CHARS, threading.get_ident),
            await pool.run_single(SHORT_WORK_CHARS + 1, threading.get_ident),
        )
        pool.close()
        return found

    short, longer = asyncio.run(scenario())
    assert short == threading.get_ident() != longer


def test_a_chat_of_many_messages_or_of_json_is_no_short_work() -> None:
    turns = [ChatMessage("user", "")] * (SHORT_WORK_CHARS // 64 + 1)
    called = ChatMessage("assistant", "", tool_calls=[ToolCall("1", "look", "[" * (SHORT_WORK_CHARS // 8))])
    assert Chat([ChatMessage("user", "x" * (SHORT_WORK_CHARS - 64))]).cost == SHORT_WORK_CHARS
    assert min(Chat(turns).cost, Chat([called]).cost) > SHORT_WORK_CHARS


def test_pythons_own_work_is_never_in_a_thread_that_gives_way() -> None:
    async def scenario() -> int:
        pool = EncodeThreads(1)
        found = await pool.run_python(_niceness)
        pool.close()
        return found

    assert asyncio.run(scenario()) == _niceness()
