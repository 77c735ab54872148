"""A frontend with both servers open: an HTTP client, and plain sockets for what a client would never send."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from guarded_server import BOSS, USER
from parts.clock import GUARD


class Answered:
    """One response read from a plain socket."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split(" ")[1]) if status else 0
        self.headers = dict(line.lower().split(": ", 1) for line in lines)

    @property
    def error(self) -> dict[str, object]:
        return json.loads(self.body)["error"]


class Web:
    """What a test needs of the HTTP server; `serving` is the whole frontend with its scheduler."""

    def __init__(self, serving, client: httpx.AsyncClient) -> None:
        self.serving = serving
        self.scheduler = serving.scheduler
        self.server = serving.server
        self.until = serving.until
        self.port: int = serving.server.http_port
        self.client = client

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, *pieces: bytes, seconds: float = GUARD) -> Answered:
        """Send bytes, then read until the server closes. Fails when it does not."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
            async with asyncio.timeout(seconds):
                return Answered(await reader.read())
        finally:
            writer.close()

    async def complete(self, **fields: object) -> httpx.Response:
        return await self.client.post("/v1/completions", json=fields)

    def answers(self, tokens: list[int], reason: str = "length", **more: object) -> None:
        """From now on every output of every request is these tokens."""

        def script(submit) -> None:
            for index in range(submit.n):
                self.scheduler.answer(submit.number, tokens, reason, index, **more)

        self.scheduler.script = script


@pytest.fixture
def web(serving) -> Callable[..., object]:
    """`async with web(**config) as w:` inside a coroutine a test runs with `asyncio.run`."""

    @asynccontextmanager
    async def start(wait: bool = True, **changes: object) -> AsyncIterator[Web]:
        async with serving(wait, **{"http_port": 0, **changes}) as s:
            base = f"http://127.0.0.1:{s.server.http_port}"
            # nothing is encrypted; a client that could verify would first read the certificates of the world
            async with httpx.AsyncClient(base_url=base, timeout=GUARD, trust_env=False, verify=False) as client:
                yield Web(s, client)

    return start


def items(text: str) -> list[object]:
    """The data items of a stream of events."""
    datas = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in datas]


@pytest.fixture
def read_items() -> Callable[[str], list[object]]:
    return items


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "keys").write_text(USER)
    (tmp_path / "admins").write_text(BOSS)
    return {"api_key_file": str(tmp_path / "keys"), "admin_key_file": str(tmp_path / "admins"), "http_port": 0}


@pytest.fixture
def guarded(serving, keys):
    """`guarded(check, **config)` runs `check(port, serving)` beside a server with a user's and an admin's key."""

    def run(check, **changes: object) -> None:
        async def main() -> None:
            async with serving(wait=False, **{**keys, **changes}) as s:
                await s.ready()
                await check(s.server.http_port, s)

        asyncio.run(main())

    return run
