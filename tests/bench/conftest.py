"""`quire bench` as a user runs it, and a small gRPC server of known behaviour to load."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from quire.deploy.__main__ import main
from quire.proto.generated import quire_pb2, quire_pb2_grpc


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """`bench("scheduler", "--steps", "5")` runs with `--json`; the object on the last line of its output."""

    def run(*arguments: str) -> dict[str, Any]:
        code = main(["bench", *arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    return run


class Script(quire_pb2_grpc.InferenceServicer, quire_pb2_grpc.ControlServicer):
    """Answers each stream with `max_tokens` tokens, two to a message; refuses prompts longer than 64 tokens."""

    def __init__(self) -> None:
        self.requests: list[quire_pb2.GenerateRequest] = []
        self.open = 0
        self.most_open = 0

    async def GetServerInfo(self, request, context):
        return quire_pb2.GetServerInfoResponse(state="ready", version="0", model_names=["m"], vocab_size=100)

    async def Detokenize(self, request, context):
        return quire_pb2.DetokenizeResponse(text=" ".join(str(token) for token in request.token_ids))

    async def Stream(self, request, context):
        self.requests.append(request)
        if len(request.prompt_token_ids.ids) > 64:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        yield quire_pb2.StreamEvent(started=quire_pb2.Started(request_id="r", model="m"))
        for first in range(0, request.max_tokens, 2):
            await asyncio.sleep(0.001)
            token_ids = list(range(first, min(first + 2, request.max_tokens)))
            yield quire_pb2.StreamEvent(delta=quire_pb2.Delta(token_ids=token_ids))
        self.open -= 1
        yield quire_pb2.StreamEvent(
            finished=quire_pb2.Finished(
                finish_reason=quire_pb2.FINISH_REASON_LENGTH,
                usage=quire_pb2.Usage(
                    prompt_tokens=len(request.prompt_token_ids.ids), completion_tokens=request.max_tokens
                ),
            )
        )


@pytest.fixture
def scripted_server() -> Iterator[tuple[str, Script]]:
    """Target and servicer of a running server."""
    script = Script()
    started = threading.Event()
    port: list[int] = []
    loop = asyncio.new_event_loop()

    async def serve() -> grpc.aio.Server:
        server = grpc.aio.server()
        quire_pb2_grpc.add_InferenceServicer_to_server(script, server)
        quire_pb2_grpc.add_ControlServicer_to_server(script, server)
        port.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        started.set()
        return server

    servers: list[grpc.aio.Server] = []

    def run() -> None:
        servers.append(loop.run_until_complete(serve()))
        loop.run_forever()
        loop.run_until_complete(servers[0].stop(None))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    yield f"127.0.0.1:{port[0]}", script
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    assert not thread.is_alive()
