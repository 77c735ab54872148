"""`quire bench serve --http` against a web server of known behaviour: the same keys, counts and statuses as gRPC."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quire.deploy.__main__ import main


class WebScript:
    """Answers each stream with `max_tokens` tokens, two to an item; refuses prompts longer than 64 tokens."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    async def complete(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        self.keys.add(request.headers.get("authorization"))
        if len(asked["prompt"]) > 64:
            return JSONResponse({"error": {"code": "queue_full", "message": "queue full"}}, 429)
        count = asked["max_tokens"]

        async def items() -> Any:
            for first in range(0, count, 2):
                await asyncio.sleep(0.001)
                choice = {"token_ids": list(range(first, min(first + 2, count)))}
                ends = {"finish_reason": "length"} if first + 2 >= count else {}
                yield f"data: {json.dumps({'choices': [choice | ends]})}\n\n"
            yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': count}})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(items())


@pytest.fixture
def scripted_web() -> Iterator[tuple[str, WebScript]]:
    script = WebScript()

    async def tell(request: Request) -> Response:
        answers = {
            "/ready": {"status": "ready"},
            "/version": {"version": "0"},
            "/v1/models": {"data": [{"id": "m", "vocab_size": 100}]},
        }
        return JSONResponse(answers[request.url.path])

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"prompt": " ".join(map(str, (await request.json())["tokens"]))})

    routes = [Route(path, tell) for path in ("/ready", "/version", "/v1/models")]
    routes += [Route("/v1/completions", script.complete, methods=["POST"])]
    routes += [Route("/detokenize", detokenize, methods=["POST"])]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=0, lifespan="off", log_level="error"))
    started = threading.Event()

    async def serve() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.001)
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", script
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def test_a_run_over_http_has_the_figures_of_one_over_grpc(bench, scripted_web, scripted_server, tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text("secret-key\n")
    target, script = scripted_web
    common = ["--num-prompts", "9", "--concurrency", "3", "--input-len", "4:6", "--output-len", "5"]
    web = bench("serve", "--http", "--target", target, "--api-key-file", str(key), *common)
    grpc = bench("serve", "--target", scripted_server[0], *common)
    assert set(web) == set(grpc)
    assert web["output_tokens"] == grpc["output_tokens"] == 45
    assert web["config"]["door"] == "http"
    assert script.keys == {"Bearer secret-key"}
    assert all(asked["ignore_eos"] and 4 <= len(asked["prompt"]) <= 6 for asked in script.requests)


def test_refusals_over_http_are_counted_by_their_code(bench, scripted_web) -> None:
    target, _ = scripted_web
    result = bench("serve", "--http", "--target", target, "--num-prompts", "20", "--input-len", "32:96")
    assert result["errors"] == {"QUEUE_FULL": 20 - result["completed"]}
    assert 0 < result["completed"] < 20


def test_text_prompts_over_http_are_what_the_server_says_the_tokens_are(bench, scripted_web) -> None:
    target, script = scripted_web
    bench("serve", "--http", "--target", target, "--text", "--num-prompts", "2", "--input-len", "3")
    assert [len(asked["prompt"].split()) for asked in script.requests] == [3, 3]


def test_no_server_at_the_target_is_a_failure_that_says_so(capsys) -> None:
    assert main(["bench", "serve", "--http", "--target", "127.0.0.1:1", "--num-prompts", "1"]) == 1
    assert "--target 127.0.0.1:1" in capsys.readouterr().err
