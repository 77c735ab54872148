"""Templates run in processes that can be killed: what one request does there costs only itself."""

import asyncio
import errno
import json
import sys
from pathlib import Path

import psutil
import pytest

from quire.frontend.chat import render_child
from quire.frontend.sandbox.child_process import ChildProcess
from quire.proto.api import Chat, ChatMessage, RequestError
from quire.proto.messages.params import ParameterError

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from parts.clock import GUARD
from rendering import HI, made, rendered


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ undefined_thing.attribute }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_the_sandbox_forbids_is_refused(source):
    template = made(source)
    answer = render_child.prepare(f'{{"default": {json.dumps(source)}}}'.encode())(template.job(Chat(HI)).payload)
    assert answer[:1] == render_child.REFUSED


def test_what_never_ends_or_takes_all_memory_costs_only_its_own_request():
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = (
        "{% if messages[0].content == 'time' %}" + endless + "{% elif messages[0].content == 'room' %}"
        "{% set x = 'x' * 99999999999 %}{% endif %}fine"
    )

    async def main():
        template = made(source, seconds=0.5)
        try:
            await template.start()
            wanted = [Chat([ChatMessage("user", text)]) for text in ("time", "hi", "room", "hi", "time", "hi")]
            jobs = [rendered(template, chat) for chat in wanted]
            return await asyncio.gather(*jobs, return_exceptions=True)
        finally:
            await template.close()

    results = asyncio.run(main())
    assert [getattr(one, "text", "") for one in results] == ["", "fine", "", "fine", "", "fine"]
    assert all(isinstance(results[index], ParameterError) for index in (0, 2, 4))
    assert "0.5 s" in str(results[0])


def test_a_process_that_is_stopped_or_killed_is_no_fault_of_the_chat():
    async def main():
        template = made("fine", seconds=0.3)
        try:
            for how in (psutil.Process.suspend, psutil.Process.kill):
                await template.start()
                for child in children():
                    child.suspend()
                asked = asyncio.create_task(rendered(template, Chat(HI)))
                for _ in range(20):
                    await asyncio.sleep(0)  # until it has been asked, or another one would be
                for child in children():
                    how(child)
                with pytest.raises(RequestError, match="this request is not at fault, send it again") as caught:
                    await asked
                assert (caught.value.reason, caught.value.field) == ("RECOVERING", "")
        finally:
            await template.close()

    def children():
        return [one for one in psutil.Process().children() if "quire.frontend.chat.render_child" in one.cmdline()]

    asyncio.run(main())


def test_chats_at_once_start_the_other_process_and_do_without_it_where_it_cannot_be(monkeypatch):
    async def main(num_processes: int) -> None:
        template = made("fine")
        await template.start()
        try:
            assert len(children()) == 1
            for _ in range(2):
                told = await asyncio.gather(*(rendered(template, Chat(HI)) for _ in range(8)))
                assert {one.text for one in told} == {"fine"}
            async with asyncio.timeout(GUARD):
                while len(children()) < num_processes:
                    await asyncio.sleep(0.01)
        finally:
            await template.close()

    def children():
        return [one for one in psutil.Process().children() if "quire.frontend.chat.render_child" in one.cmdline()]

    asyncio.run(main(2))
    start, num_started = ChildProcess.start, iter(range(100))

    async def without_memory(*how):
        if next(num_started):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return await start(*how)

    monkeypatch.setattr(ChildProcess, "start", without_memory)
    asyncio.run(main(1))
    assert next(num_started) == 2
