"""A real frontend process before a stand-in scheduler (`stand_in.py`): what a request costs before the engine.

The client notes when it begins to send, the stand-in when the Submit is there, and
CLOCK_MONOTONIC is one for all processes of a machine. What client and transport cost is therefore within the figures.
"""

import asyncio
import http.client
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quire.deploy.bench.load.grpc_channels import connect
from quire.deploy.bench.load.http_client import CHAT, HttpClient, body_of
from quire.deploy.bench.load.images import ImageChat
from quire.deploy.bench.load.prompts import Prompt
from quire.deploy.bench.load.request_record import OK, RequestRecord, request_of, stream
from quire.deploy.bench.report.report import percentiles
from quire.frontend.config import FrontendConfig
from quire.frontend.text.tokenizer import TextTokenizer
from quire.proto.api import Chat, ChatMessage, GenerateRequest, ImagePart, TextPart
from quire.proto.client import Client

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / "deploy" / "model"
START_SECONDS = 600.0
BUDGET_SECONDS = 3600.0
"""Of every request. What a Submit lacks of it is the time from the request's arrival at the pipeline."""
DOORS = ("grpc", "http")
SPAWN = multiprocessing.get_context("spawn")
TURNS = ("system", "user", "assistant", "user", "assistant", "user")

Source = str | Chat | ImageChat
Send = Callable[[Any], None]


@dataclass(frozen=True)
class Frontend:
    grpc: str
    """host:port"""
    http: str

    @contextmanager
    def door(self, name: str) -> Iterator[Send]:
        """Sends one request with its answer of one token, over a connection that stays open."""
        if name == "grpc":
            with Client(self.grpc) as client:
                yield lambda source: _check(client.generate(_request(source)).outputs[0].finished.finish_reason)
            return
        connection = http.client.HTTPConnection(self.http, timeout=START_SECONDS)
        try:
            yield lambda source: _post(connection, *_body(source))
        finally:
            connection.close()


class Stage:
    """The processes; `arrivals` is there once they have ended."""

    def __init__(self, pace_ms: float, max_model_len: int, *, model: Path = MODEL, **config: Any) -> None:
        """`config`: fields of the frontend's that are not this bench's."""
        self._stack = ExitStack()
        self._pace_ms = pace_ms
        self._max_model_len = max_model_len
        self._model = model
        self._config = config
        self.arrivals: list[tuple[float, int, float]] = []

    @property
    def pid(self) -> int:
        """Of the frontend."""
        return self._frontend.pid

    def __enter__(self) -> Frontend:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        config_json = json.loads((self._model / "config.json").read_text())
        vocab_size = config_json.get("text_config", config_json)["vocab_size"]
        address, ready, config = f"ipc://{folder}/s", folder / "ready.json", folder / "frontend.json"
        options = [address, str(self._pace_ms), str(self._max_model_len), str(vocab_size)]
        self._stand_in = subprocess.Popen(
            [sys.executable, str(HERE / "stand_in.py"), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._stack.callback(self._stand_in.kill)
        told = FrontendConfig(
            scheduler_address=address,
            model=str(self._model),
            run_dir=str(folder),
            served_model_names=("m",),
            http_port=0,
            ready_file=str(ready),
            log_level="warning",
            default_timeout_seconds=BUDGET_SECONDS,
            **self._config,
        )
        config.write_bytes(msgspec.json.encode(told))
        self._frontend = subprocess.Popen([sys.executable, "-P", "-m", "quire.frontend", str(config)])
        self._stack.callback(self._frontend.wait)
        self._stack.callback(self._frontend.kill)
        return self._ready(ready)

    def __exit__(self, *exit: object) -> None:
        try:
            told, _ = self._stand_in.communicate()
            self.arrivals = [tuple(one) for one in json.loads(told or b"[]")]
        finally:
            self._stack.close()

    def _ready(self, file: Path) -> Frontend:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._frontend.poll() is None:
            if file.exists():
                ports = json.loads(file.read_text())
                found = Frontend(f"127.0.0.1:{ports['grpc_port']}", f"127.0.0.1:{ports['http_port']}")
                with Client(found.grpc) as client:
                    if client.server_info().state == "ready":
                        return found
            time.sleep(0.05)
        raise RuntimeError(f"the frontend was not ready within {START_SECONDS:g} s")


def ttft(num_requests: int, num_tokens: int, seed: int) -> dict[str, Any]:
    """Milliseconds to the Submit, one request at a time, for text and chat.

    `ms` is the frontend's own part, from the request's arrival at its pipeline; `from_send_ms` begins when the client
    begins to send and ends when the scheduler's side has the Submit.
    """
    texts = Texts(seed)
    stage = Stage(pace_ms=1.0, max_model_len=4 * num_tokens)
    sent: dict[str, list[float]] = {}
    with stage as frontend:
        for door in DOORS:
            with frontend.door(door) as send:
                for kind in ("text", "chat"):
                    moments = sent[f"{door}_{kind}"] = []
                    for index in range(num_requests + WARMUP):
                        prompt = texts.draw(num_tokens)
                        source = prompt if kind == "text" else _chat(prompt)
                        if index >= WARMUP:
                            moments.append(time.monotonic())
                        send(source)
    arrivals = iter(stage.arrivals)
    figures: dict[str, Any] = {}
    for name, moments in sent.items():
        found = [next(arrivals) for _ in range(num_requests + WARMUP)][WARMUP:]
        own = [1e3 * (BUDGET_SECONDS - left) for _, _, left in found]
        taken = [1e3 * (at - since) for since, (at, _, _) in zip(moments, found, strict=True)]
        figures |= percentiles(f"{name}_ms", own, (50, 99)) | percentiles(f"{name}_from_send_ms", taken, (50, 99))
        figures[f"{name}_tokens"] = float(np.mean([count for _, count, _ in found]))
    return figures


WARMUP = 20
"""Requests of each kind that do not count."""


def tokenize_long(
    door: str, seconds: float, num_streams: int, num_tokens: int, pace_ms: float, seed: int
) -> dict[str, Any]:
    """Gaps between the messages of steady streams, while a long prompt is prepared and while none is."""
    texts = Texts(seed)
    prompts = [texts.draw(num_tokens) for _ in range(LONG_PROMPTS)]
    stage = Stage(pace_ms, max_model_len=2 * num_tokens)
    return beside_long(stage, door, prompts, num_streams, int(1e3 * seconds / pace_ms), num_tokens)


def beside_long(
    stage: "Stage", door: str, prompts: Sequence[Source], num_streams: int, output_len: int, num_tokens: int
) -> dict[str, Any]:
    """Gaps between the messages of streams of `output_len` tokens, while one of `prompts`, of about `num_tokens`, is
    prepared and while none is.
    """
    with stage as frontend:
        begin = time.monotonic()
        records, sent = asyncio.run(_beside(frontend, door, prompts, num_streams, output_len))
    long = [(at, count) for at, count, _ in stage.arrivals if count > num_tokens // 2]
    windows = [(moment, at) for moment, (at, _) in zip(sent, long, strict=False)]
    while_long, quiet = [], []
    for record in records:
        if record.status != OK:
            raise RuntimeError(f"a stream ended with {record.status}")
        for start, gap in zip(record.moments, record.gaps, strict=False):
            if start < begin + SETTLE_SECONDS:
                continue
            if any(start < until and start + gap > since for since, until in windows):
                while_long.append(1e3 * gap)
            elif not any(start < until + MARGIN and start + gap > since - MARGIN for since, until in windows):
                quiet.append(1e3 * gap)
    figures: dict[str, Any] = {
        **percentiles("quiet_itl_ms", quiet, (50, 99)),
        **percentiles("long_itl_ms", while_long, (50, 99)),
        **percentiles("long_prompt_ms", [1e3 * (until - since) for since, until in windows], (50,)),
        "long_prompts": len(windows),
        "long_prompt_tokens": float(np.mean([count for _, count in long])),
        "gaps": {"quiet": len(quiet), "long": len(while_long)},
    }
    return figures | {"p99_ratio": figures["long_itl_ms_p99"] / figures["quiet_itl_ms_p99"]}


LONG_PROMPTS = 8
"""Different ones, taken in turn."""
SETTLE_SECONDS = 0.5
PAUSE_SECONDS = 0.3
"""Between two long prompts."""
MARGIN = 0.05
"""Seconds around a long prompt that count as neither."""


async def _beside(
    frontend: Frontend, door: str, prompts: Sequence[Source], num_streams: int, num_tokens: int
) -> tuple[list[RequestRecord], list[float]]:
    """The streams' records, and when the long prompts were sent while all streams were alive."""
    ended, (ours, theirs) = SPAWN.Event(), SPAWN.Pipe()
    sender = SPAWN.Process(target=_send_all, args=(frontend, door, prompts, ended, theirs), daemon=True)
    sender.start()
    ours.recv()
    async with _opened(frontend, door, num_streams) as open_one:
        streams = [asyncio.create_task(open_one(Prompt(list(range(200, 216)), num_tokens))) for _ in range(num_streams)]
        await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        ended.set()
        sent: list[float] = await asyncio.to_thread(ours.recv)
        sender.join()
        return list(await asyncio.gather(*streams)), sent


def _send_all(frontend: Frontend, door: str, prompts: Sequence[Source], ended: Event, told: Connection) -> None:
    """Send one prompt after the other until `ended`, from a process that takes no time from those who read streams."""
    sent: list[float] = []
    with frontend.door(door) as send:
        told.send(None)
        while not ended.wait(PAUSE_SECONDS):
            sent.append(time.monotonic())
            send(prompts[len(sent) % len(prompts)])
    told.send(sent)


@asynccontextmanager
async def _opened(
    frontend: Frontend, door: str, num_streams: int
) -> AsyncIterator[Callable[[Prompt], Awaitable[RequestRecord]]]:
    """Opens one stream of a door and reads it to its end."""
    if door == "grpc":
        async with connect([frontend.grpc], num_streams) as stubs:
            yield lambda prompt: stream(next(stubs), request_of(prompt, 0.0, "", 0))
        return
    client = HttpClient([frontend.http], {})
    try:
        yield lambda prompt: client.stream(body_of(prompt.token_ids, prompt.output_len, 0.0, "", 0))
    finally:
        client.close()


class Texts:
    """Lines of this repository's own code, drawn at random: no two texts are alike, all have ordinary words."""

    def __init__(self, seed: int) -> None:
        files = sorted(HERE.parents[1].glob("[!.]*/**/*.py"))
        self._lines = [
            line for file in files for line in file.read_text(encoding="utf-8").splitlines(True) if line.strip()
        ]
        self._random = np.random.default_rng(seed)
        self._tokenizer = TextTokenizer(str(MODEL))

    def draw(self, num_tokens: int) -> str:
        """About so many tokens."""
        order = self._random.integers(0, len(self._lines), num_tokens)
        lines = [self._lines[index] for index in order[: num_tokens // 2 + 1]]
        ids = self._tokenizer.encode("".join(lines))
        return self._tokenizer.decode(ids[:num_tokens])


def _chat(text: str) -> Chat:
    """The same text as a conversation of a few turns."""
    size = -(-len(text) // len(TURNS))
    return Chat([ChatMessage(role, text[index * size :][:size]) for index, role in enumerate(TURNS)])


def _request(source: Source) -> GenerateRequest:
    if isinstance(source, ImageChat):
        parts = [*(ImagePart(data=image) for image in source.images), TextPart(source.text)]
        source = Chat([ChatMessage("user", parts)])
    return GenerateRequest(input=source, max_tokens=1, temperature=0)


def _body(source: Source) -> tuple[str, bytes]:
    """Path and JSON body of the same request."""
    if isinstance(source, ImageChat):
        return CHAT, body_of(source, 1, 0.0, "", 0)
    common = {"max_tokens": 1, "temperature": 0}
    if isinstance(source, str):
        return "/v1/completions", msgspec.json.encode({"prompt": source, **common})
    messages = [{"role": one.role, "content": one.content} for one in source.messages]
    return "/v1/chat/completions", msgspec.json.encode({"messages": messages, **common})


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> None:
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    told = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status}: {told[:500].decode()}")


def _check(reason: str) -> None:
    if reason != "length":
        raise RuntimeError(f"a request ended with {reason!r}")
