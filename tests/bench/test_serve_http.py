"""`quire bench serve --http` against a web server of known behaviour: the same keys, counts and statuses as gRPC."""

import asyncio
import base64
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from parts.clock import GUARD
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quire.deploy.__main__ import main
from quire.deploy.bench.load.http_client import HttpClient


class WebScript:
    """Answers each stream with `max_tokens` tokens, two to an item; refuses prompts longer than 64 tokens.

    `pages` are what it says of itself, by path. With `text_alone` it knows nothing of token ids in answers, as
    llama.cpp's server: each token but the last is a text of its own.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {
            "/ready": {"status": "ready"},
            "/version": {"version": "0"},
            "/v1/models": {"data": [{"id": "m", "vocab_size": 100}]},
        }
        self.text_alone = False
        self.refusal: dict[str, Any] = {"code": "queue_full", "message": "queue full"}
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()

    async def complete(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        self.keys.add(request.headers.get("authorization"))
        if len(asked["prompt"]) > 64:
            return JSONResponse({"error": self.refusal}, 429)
        return self._streamed(asked)

    async def chat(self, request: Request) -> Response:
        """The prompt counts as one token for each message."""
        asked = await request.json()
        self.requests.append(asked)
        return self._streamed(asked | {"prompt": asked["messages"]})

    def _streamed(self, asked: dict[str, Any]) -> Response:
        count = asked["max_tokens"]
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": count}

        async def texts() -> Any:
            for _ in range(1, count):
                await asyncio.sleep(0.001)
                word = {"delta": {"content": " a"}} if "messages" in asked else {"text": " a"}
                yield f"data: {json.dumps({'choices': [word | {'finish_reason': None}]})}\n\n"
            last = {"choices": [{"text": "", "finish_reason": "length"}], "usage": usage}
            yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"

        async def items() -> Any:
            for first in range(0, count, 2):
                await asyncio.sleep(0.001)
                choice = {"token_ids": list(range(first, min(first + 2, count)))}
                ends = {"finish_reason": "length"} if first + 2 >= count else {}
                yield f"data: {json.dumps({'choices': [choice | ends]})}\n\n"
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"

        return StreamingResponse(texts() if self.text_alone else items())


@pytest.fixture
def scripted_web() -> Iterator[tuple[str, WebScript]]:
    script = WebScript()

    async def tell(request: Request) -> Response:
        page = script.pages.get(request.url.path)
        return Response("not found", 404) if page is None else JSONResponse(page)

    async def detokenize(request: Request) -> Response:
        return JSONResponse({"prompt": " ".join(map(str, (await request.json())["tokens"]))})

    routes = [Route(path, tell) for path in ("/ready", "/version", "/v1/models")]
    routes += [Route("/v1/completions", script.complete, methods=["POST"])]
    routes += [Route("/v1/chat/completions", script.chat, methods=["POST"])]
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
    assert started.wait(GUARD)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", script
    server.should_exit = True
    thread.join(GUARD)
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
    assert web["input_tokens"] == grpc["input_tokens"] == sum(len(asked["prompt"]) for asked in script.requests)
    assert web["config"]["door"] == "http"
    assert script.keys == {"Bearer secret-key"}
    assert all(asked["ignore_eos"] and 4 <= len(asked["prompt"]) <= 6 for asked in script.requests)


def test_refusals_over_http_are_counted_by_their_code(bench, scripted_web) -> None:
    target, _ = scripted_web
    result = bench("serve", "--http", "--target", target, "--num-prompts", "20", "--input-len", "32:96")
    assert result["errors"] == {"QUEUE_FULL": 20 - result["completed"]}
    assert 0 < result["completed"] < 20


def test_a_server_of_another_make_is_measured_by_what_it_says(bench, scripted_web) -> None:
    target, script = scripted_web
    script.pages = {"/v1/models": {"data": [{"id": "m", "meta": {"n_vocab": 10}}]}}
    script.text_alone = True
    common = ["--num-prompts", "3", "--concurrency", "1", "--input-len", "4", "--output-len", "5"]
    result = bench("serve", "--http", "--target", target, *common)
    assert result["input_tokens"] == 12
    assert result["output_tokens"] == 15, "four texts and a token without one, as its usage says"
    assert result["config"]["server"]["version"] is None
    assert all(max(asked["prompt"]) < 10 for asked in script.requests)


def test_a_refusal_that_repeats_the_http_status_is_counted_by_it(bench, scripted_web) -> None:
    target, script = scripted_web
    script.refusal = {"code": 429, "message": "slow down"}
    result = bench("serve", "--http", "--target", target, "--num-prompts", "20", "--input-len", "32:96")
    assert result["errors"] == {"HTTP 429": 20 - result["completed"]}


def test_a_vocabulary_that_no_one_states_is_asked_for(bench, scripted_web, capsys) -> None:
    target, script = scripted_web
    script.pages = {"/version": {"version": "0"}, "/v1/models": {"data": [{"id": "m"}]}}
    assert main(["bench", "serve", "--http", "--target", target, "--num-prompts", "1"]) == 1
    assert "--vocab-size" in capsys.readouterr().err
    bench("serve", "--http", "--target", target, "--num-prompts", "9", "--input-len", "8", "--vocab-size", "7")
    assert {token for asked in script.requests for token in asked["prompt"]} == set(range(7))


def test_an_answer_without_models_is_a_failure_in_the_servers_words(scripted_web, capsys) -> None:
    target, script = scripted_web
    for error in ({"code": 503, "message": "Loading model"}, "Loading model"):
        script.pages["/v1/models"] = {"error": error}
        assert main(["bench", "serve", "--http", "--target", target, "--num-prompts", "1"]) == 1
        assert "Loading model" in capsys.readouterr().err
    script.pages["/v1/models"] = {"data": [{"name": "m"}]}
    assert main(["bench", "serve", "--http", "--target", target, "--num-prompts", "1"]) == 1
    assert "`id`" in capsys.readouterr().err


def test_text_prompts_over_http_are_what_the_server_says_the_tokens_are(bench, scripted_web) -> None:
    target, script = scripted_web
    bench("serve", "--http", "--target", target, "--text", "--num-prompts", "2", "--input-len", "3")
    assert [len(asked["prompt"].split()) for asked in script.requests] == [3, 3]


def test_a_request_on_a_connection_that_the_server_just_closed_is_sent_again() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The first request is answered, in words of a connection that stays; the second finds it closed."""
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async def ask_twice() -> list[bytes]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            client = HttpClient([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"], {})
            answers = [await client.ask("GET", path) for path in ("/first", "/second")]
            client.close()
            return answers

    assert asyncio.run(ask_twice()) == [b"ok", b"ok"]
    assert [request.split()[1] for request in asked] == [b"/first", b"/second", b"/second"]


def test_no_server_at_the_target_is_a_failure_that_says_so(capsys) -> None:
    assert main(["bench", "serve", "--http", "--target", "127.0.0.1:1", "--num-prompts", "1"]) == 1
    assert "--target 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("text_alone", [False, True])
def test_images_over_http_are_chats_of_data_urls_that_differ(bench, scripted_web, text_alone) -> None:
    target, script = scripted_web
    script.text_alone = text_alone
    common = ["--num-prompts", "4", "--input-len", "3", "--output-len", "5", "--shared-prefix", "2"]
    result = bench("serve", "--http", "--target", target, *common, "--images", "2", "--image-size", "40x24")
    assert result["errors"] == {}
    assert result["output_tokens"] == 20
    assert (result["config"]["images"], result["config"]["image_size"]) == (2, "40x24")
    urls = set()
    for asked in script.requests:
        system, user = asked["messages"]
        assert system == {"role": "system", "content": script.requests[0]["messages"][0]["content"]}
        assert [part["type"] for part in user["content"]] == ["image_url", "image_url", "text"]
        assert len(user["content"][2]["text"].split()) == 3
        urls |= {part["image_url"]["url"] for part in user["content"][:2]}
    assert len(urls) == 8
    for url in urls:
        head, _, data = url.partition(",")
        assert head == "data:image/jpeg;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        assert (image.format, image.size) == ("JPEG", (40, 24))
