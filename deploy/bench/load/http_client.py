"""An HTTP client of a load generator: streamed completions over kept connections, read with little work of its own."""

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from itertools import count

import httptools
import msgspec

from quire.deploy.bench.load.images import ImageChat
from quire.deploy.bench.load.request_record import OK, RequestRecord

GOOD_ENDS = ("length", "stop")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class _Delta(msgspec.Struct):
    """The piece of an answer in a chunk of a chat."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    delta: _Delta = msgspec.field(default_factory=_Delta)
    token_ids: list[int] | None = None
    """None in every chunk of a server that does not know `return_token_ids`."""
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int
    prompt_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    """A name; other servers repeat the HTTP status."""


class _Item(msgspec.Struct):
    """A chunk of a stream, or an error."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_item = msgspec.json.Decoder(_Item).decode


class Connection(asyncio.Protocol):
    """One request at a time; `record` takes what a stream brings."""

    def __init__(self) -> None:
        self.is_open = True
        self.has_answered = False
        """Something came since the last request."""
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[bytes] | None = None
        self._record: RequestRecord | None = None
        self._rest = b""

    async def ask(self, request: bytes, record: RequestRecord | None) -> bytes:
        """The body; of a stream, what is left when its items are in `record`. Raises `ConnectionError`."""
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._record = record
        self._rest = b""
        self.has_answered = False
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the server closed the connection within an answer"))

    def data_received(self, data: bytes) -> None:
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._done is not None and not self._done.done():
                self._done.set_exception(ConnectionError(f"the answer is not HTTP/1.1: {error}"))
            self.close()

    def on_body(self, body: bytes) -> None:
        self._rest += body
        if self._record is None or self._parser.get_status_code() != 200:
            return
        *items, self._rest = self._rest.split(b"\n\n")
        for item in items:
            if item != b"data: [DONE]":
                note(self._record, _item(item[6:]))

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._record is not None and status != 200:
            error = _item(self._rest).error if self._rest.startswith(b"{") else None
            self._record.status = _status(error, f"HTTP {status}")
        self.is_open = self.is_open and self._parser.should_keep_alive()
        # a parser serves one answer: the next may follow only when this one is complete
        self._parser = httptools.HttpResponseParser(self)
        if self._done is not None and not self._done.done():
            self._done.set_result(self._rest)


def note(record: RequestRecord, item: _Item) -> None:
    """Take one item of a stream."""
    if item.error is not None:
        record.status = _status(item.error, "UNKNOWN")
    for choice in item.choices:
        has_text = bool(choice.text or choice.delta.content or choice.delta.reasoning or choice.delta.reasoning_content)
        if has_text and choice.token_ids is None:
            record.names_tokens = False
        count = len(choice.token_ids or ()) if record.names_tokens else int(has_text)
        if count:
            record.moments.append(time.monotonic())
            record.counts.append(count)
        if choice.finish_reason is not None:
            record.status = OK if choice.finish_reason in GOOD_ENDS else choice.finish_reason.upper()
    if item.usage is not None:
        record.prompt_tokens = item.usage.prompt_tokens
        record.completion_tokens = item.usage.completion_tokens
        if record.counts and not record.names_tokens:
            record.counts[-1] += record.completion_tokens - record.num_tokens  # texts of several tokens, and of none


def _status(error: _Error | None, default: str) -> str:
    return error.code.upper() if error is not None and isinstance(error.code, str) else default


class HttpClient:
    """Connections to one or more servers, taken in turn; an idle one is used again."""

    def __init__(self, targets: Sequence[str], headers: Mapping[str, str]) -> None:
        self._targets = targets
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._turns = count()
        self._idle: dict[str, list[Connection]] = {target: [] for target in targets}

    async def stream(self, body: bytes, path: str = COMPLETIONS) -> RequestRecord:
        """Send one request and read its stream to the end; failures are in the record's status, never raised."""
        record = RequestRecord(sent=time.monotonic())
        try:
            await self.ask("POST", path, body, record)
        except OSError:
            record.status = "UNAVAILABLE"
        record.ended = time.monotonic()
        return record

    async def ask(self, method: str, path: str, body: bytes = b"", record: RequestRecord | None = None) -> bytes:
        """The answer's body. Raises `OSError` when no server answers.

        A server may close a kept connection while the next request is on its way to it: that one is sent again.
        """
        target = self._targets[next(self._turns) % len(self._targets)]
        head = f"{method} {path} HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\n{self._headers}"
        idle = self._idle[target]
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        connection = next((one for one in iter(lambda: idle.pop() if idle else None, None) if one.is_open), None)
        if connection is not None:
            try:
                return await self._ask(connection, target, request, record)
            except ConnectionError:
                if connection.has_answered:
                    raise
        host, _, port = target.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, host.strip("[]"), int(port))
        return await self._ask(connection, target, request, record)

    async def _ask(self, connection: Connection, target: str, request: bytes, record: RequestRecord | None) -> bytes:
        answer = await connection.ask(request, record)
        if connection.is_open:
            self._idle[target].append(connection)
        return answer

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()


def body_of(prompt: str | list[int] | ImageChat, output_len: int, temperature: float, model: str, seed: int) -> bytes:
    """The request that `record.request_of` makes for gRPC; that of a chat belongs to `CHAT`."""
    asked = {"messages": _messages(prompt)} if isinstance(prompt, ImageChat) else {"prompt": prompt}
    fields: dict[str, object] = {
        **asked,
        "max_tokens": output_len,
        "temperature": temperature,
        "ignore_eos": True,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    return msgspec.json.encode(fields | ({"model": model} if model else {}))


def _messages(chat: ImageChat) -> list[dict[str, object]]:
    urls = [f"data:image/jpeg;base64,{base64.b64encode(image).decode()}" for image in chat.images]
    parts: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    user: dict[str, object] = {"role": "user", "content": [*parts, {"type": "text", "text": chat.text}]}
    return [{"role": "system", "content": chat.system}, user] if chat.system else [user]
