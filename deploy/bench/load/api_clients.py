"""Clients of a load generator for both APIs of a running server: the same requests, the same records."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import msgspec

from quire.deploy.bench.load.grpc_channels import connect
from quire.deploy.bench.load.http_client import CHAT, COMPLETIONS, HttpClient, body_of
from quire.deploy.bench.load.images import ImageChat
from quire.deploy.bench.load.prompts import Prompt
from quire.deploy.bench.load.request_record import Metadata, RequestRecord, request_of, stream
from quire.deploy.bench.report.errors import BenchError
from quire.deploy.commands.connect import UNREACHED
from quire.deploy.commands.target import unreached
from quire.proto.generated import quire_pb2, quire_pb2_grpc

CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Server:
    """Facts of a server; None where this API does not report them."""

    version: str | None
    models: list[str]
    vocab_size: int | None
    device: str | None = None
    dtype: str | None = None
    num_devices: int | None = None


class _ModelMeta(msgspec.Struct):
    """llama.cpp's server says its vocabulary here."""

    n_vocab: int | None = None


class _ModelCard(msgspec.Struct):
    id: str
    vocab_size: int | None = None
    meta: _ModelMeta | None = None


class ApiClient(Protocol):
    """One API of one server. A request is opaque: made by `request`, taken by `send`."""

    server: Server

    def request(
        self, prompt: str | list[int] | ImageChat, output_len: int, temperature: float, model: str, seed: int
    ) -> Any: ...

    async def send(self, request: Any) -> RequestRecord: ...

    async def text(self, token_ids: list[int]) -> str:
        """Text of these tokens, so that the server tokenizes as it does for people. Raises `BenchError`."""


class GrpcApiClient:
    def __init__(self, server: Server, stubs: Iterator[quire_pb2_grpc.InferenceStub], metadata: Metadata) -> None:
        self.server = server
        self._stubs = stubs
        self._metadata = metadata

    def request(
        self, prompt: str | list[int] | ImageChat, output_len: int, temperature: float, model: str, seed: int
    ) -> quire_pb2.GenerateRequest:
        request = request_of(Prompt([], output_len), temperature, model, seed)
        if isinstance(prompt, ImageChat):
            request.chat.CopyFrom(_chat(prompt))
        elif isinstance(prompt, str):
            request.prompt = prompt
        else:
            request.prompt_token_ids.ids.extend(prompt)
        return request

    async def send(self, request: quire_pb2.GenerateRequest) -> RequestRecord:
        return await stream(next(self._stubs), request, self._metadata)

    async def text(self, token_ids: list[int]) -> str:
        request = quire_pb2.DetokenizeRequest(token_ids=token_ids)
        try:
            answer = await next(self._stubs).Detokenize(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise BenchError(f"--text: Detokenize: {error.code().name}: {error.details()}") from error
        return str(answer.text)


def _chat(asked: ImageChat) -> quire_pb2.Chat:
    parts = [quire_pb2.ContentPart(image=quire_pb2.ImagePart(data=image)) for image in asked.images]
    user = quire_pb2.ChatMessage(role="user", content_parts=[*parts, quire_pb2.ContentPart(text=asked.text)])
    system = [quire_pb2.ChatMessage(role="system", content=asked.system)] if asked.system else []
    return quire_pb2.Chat(messages=[*system, user])


class HttpApiClient:
    def __init__(self, server: Server, client: HttpClient) -> None:
        self.server = server
        self._client = client

    def request(
        self, prompt: str | list[int] | ImageChat, output_len: int, temperature: float, model: str, seed: int
    ) -> tuple[bytes, str]:
        """Body and path."""
        path = CHAT if isinstance(prompt, ImageChat) else COMPLETIONS
        return body_of(prompt, output_len, temperature, model, seed), path

    async def send(self, request: tuple[bytes, str]) -> RequestRecord:
        return await self._client.stream(*request)

    async def text(self, token_ids: list[int]) -> str:
        answer = await self._client.ask("POST", "/detokenize", msgspec.json.encode({"tokens": token_ids}))
        body = msgspec.json.decode(answer)
        if "prompt" not in body:
            raise BenchError(f"--text: /detokenize: {body}")
        return str(body["prompt"])


@asynccontextmanager
async def open_grpc(target: str, key: str, width: int) -> AsyncIterator[ApiClient]:
    """Open a gRPC client for `width` streams at a time. Raises `BenchError` when no ready server answers."""
    metadata: Metadata = (("authorization", f"Bearer {key}"),) if key else ()
    async with grpc.aio.insecure_channel(target) as channel:
        control = quire_pb2_grpc.ControlStub(channel)  # type: ignore[no-untyped-call]
        try:
            info: quire_pb2.GetServerInfoResponse = await control.GetServerInfo(
                quire_pb2.GetServerInfoRequest(), timeout=CONNECT_SECONDS, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            found = unreached(target) if error.code().name in UNREACHED else ""
            raise BenchError(f"--target {target}: {found or f'{error.code().name}: {error.details()}'}") from error
    if info.state != "ready":
        raise BenchError(f"--target {target}: the server is {info.state!r}; wait until it is ready")
    server = Server(
        info.version, list(info.model_names), info.vocab_size, info.device, info.dtype, info.num_ranks or None
    )
    async with connect([target], width) as stubs:
        yield GrpcApiClient(server, stubs, metadata)


@asynccontextmanager
async def open_http(target: str, key: str, width: int) -> AsyncIterator[ApiClient]:
    """Open an HTTP client, a connection per stream as needed. Raises `BenchError` when no ready server answers.

    Any server of OpenAI's API will do: only `/v1/models` must be there.
    """
    client = HttpClient([target], {"authorization": f"Bearer {key}"} if key else {})
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            ready, version, models = [
                _object(await client.ask("GET", path)) for path in ("/ready", "/version", "/v1/models")
            ]
    except (OSError, ValueError) as error:
        found = unreached(target, "HTTP")
        raise BenchError(f"--target {target}: {found or error or 'does not answer'}") from error
    if not models.get("data"):
        why = models.get("error", "its /v1/models lists no model")
        raise BenchError(f"--target {target}: {why.get('message', why) if isinstance(why, dict) else why}")
    if ready.get("status", "ready") != "ready":
        raise BenchError(f"--target {target}: the server is {ready.get('status')!r}; wait until it is ready")
    try:
        cards = msgspec.convert(models["data"], list[_ModelCard])
    except msgspec.ValidationError as error:
        raise BenchError(f"--target {target}: its /v1/models is not OpenAI's: {error}") from error
    vocab_size = cards[0].vocab_size or (cards[0].meta.n_vocab if cards[0].meta else None)
    try:
        yield HttpApiClient(Server(version.get("version"), [card.id for card in cards], vocab_size), client)
    finally:
        client.close()


def _object(answer: bytes) -> dict[str, Any]:
    """A JSON object, empty where the answer is none: a path that this server does not have."""
    try:
        found = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
