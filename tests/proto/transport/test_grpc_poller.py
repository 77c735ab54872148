"""The thread that collects the completions of `grpc.aio` never waits for the event loop, in a process of its own."""

import socket
import subprocess
import sys
import threading

import pytest

from quire.proto.transport.grpc_poller import unblocked_poller

PROGRAM = """
import asyncio, socket, sys, time
import grpc.aio
from quire.proto.transport.grpc_poller import unblocked_poller

NUM_CALLS = 400  # a completion each: more than the library's socket pair holds


async def main():
    make_pair = socket.socketpair
    with unblocked_poller():
        server = grpc.aio.server()
    assert socket.socketpair is make_pair
    waiting, go = [], asyncio.Event()

    async def answer(request, context):
        waiting.append(request)
        await go.wait()
        await context.write(b"answer")

    handler = grpc.unary_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Answer": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    turns = 0

    def count():
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    async def read():
        return await channel.unary_stream("/test/Answer")(b"").read()

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        calls = [asyncio.create_task(read()) for _ in range(NUM_CALLS)]
        while len(waiting) < NUM_CALLS:
            await asyncio.sleep(0.01)
        go.set()
        await asyncio.sleep(0)  # wakes the handlers
        await asyncio.sleep(0)  # in which they begin to write
        time.sleep(2.0)  # the thread collects meanwhile: for each call what was written, and what was read
        count()
        assert set(await asyncio.gather(*calls)) == {b"answer"}
        print(turns)
    await server.stop(None)


asyncio.run(main())
"""


@pytest.mark.integration
def test_what_is_complete_is_taken_in_few_turns_of_the_loop_however_much_it_is():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 60, "a thread that waits leaves more than a hundred completions, one for each turn"


def test_threads_that_make_channels_at_once_leave_the_module_of_sockets_as_it_was():
    make_pair = socket.socketpair
    is_within, may_leave = threading.Event(), threading.Event()

    def second() -> None:
        with unblocked_poller():
            is_within.set()
            may_leave.wait()

    thread = threading.Thread(target=second)
    with unblocked_poller():
        thread.start()
        is_within.wait(0.5)  # where it does not wait for its turn
    may_leave.set()
    thread.join()
    assert is_within.is_set()
    assert socket.socketpair is make_pair
