"""A typed client for services that talk to quire over gRPC. `Client` blocks, `AsyncClient` awaits; both stream.

    with Client("127.0.0.1:50051") as client:
        for event in client.stream(GenerateRequest(input="Once upon a time", max_tokens=32)):
            if isinstance(event, Delta):
                print(event.text, end="")

Every failure is a `RequestError` with its status, reason and field. Leaving a stream early cancels it on the server.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from quire.proto import api, grpc_map
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc
from quire.proto.grpc_status import from_status

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
"""A server allows pings every 30 s; answers with many logprobs are large."""


class Client:
    """One connection to one target (`host:port`), usable from several threads."""

    def __init__(
        self, target: str, api_key: str | None = None, timeout_seconds: float | None = None, *, tls: bool = False,
        tls_ca_file: str = "", tls_cert_file: str = "", tls_key_file: str = "",
    ) -> None:  # fmt: skip
        """`timeout_seconds` is the deadline of every call that names none; None leaves it to the server.

        `tls`, or any of the PEM files, makes it a TLS connection: `tls_ca_file` holds who may have signed the server's
        certificate (empty: gRPC's own list), the other two are what a server with a client CA asks for.
        Raises `ValueError` naming a file that cannot be read.
        """
        credentials = _credentials(tls, tls_ca_file, tls_cert_file, tls_key_file)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=OPTIONS)
        stubs: Any = quire_pb2_grpc  # made without annotations
        self._inference: Any = stubs.InferenceStub(self._channel)
        self._control: Any = stubs.ControlStub(self._channel)
        self._metadata = _metadata(api_key)
        self._timeout = timeout_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def generate(self, request: api.GenerateRequest, timeout_seconds: float | None = None) -> api.Generation:
        """The whole answer."""
        message = grpc_map.generate_request_message(request)
        return grpc_map.generation(self._call(self._inference.Generate, message, timeout_seconds))

    def stream(self, request: api.GenerateRequest, timeout_seconds: float | None = None) -> Iterator[api.Event]:
        """The answer's events as they come. Close the iterator to cancel."""
        call = self._inference.Stream(
            grpc_map.generate_request_message(request),
            timeout=timeout_seconds or self._timeout,
            metadata=self._metadata,
        )
        try:
            with _errors():
                for message in call:
                    yield grpc_map.event(message)
        finally:
            call.cancel()

    def tokenize(
        self, text: str | api.Chat, add_special_tokens: bool | None = None, return_texts: bool | None = None,
        parse_special: bool | None = None,
    ) -> api.Tokens:  # fmt: skip
        message = _tokenize_request(text, add_special_tokens, return_texts, parse_special)
        return grpc_map.tokens(self._call(self._inference.Tokenize, message))

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool | None = None) -> str:
        message = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        response: pb.DetokenizeResponse = self._call(self._inference.Detokenize, message)
        return response.text

    def server_info(self) -> api.ServerInfo:
        return grpc_map.server_info(self._call(self._control.GetServerInfo, pb.GetServerInfoRequest()))

    def models(self) -> tuple[api.Model, ...]:
        return grpc_map.models(self._call(self._control.ListModels, pb.ListModelsRequest()))

    def load(self) -> api.EngineLoad:
        return grpc_map.load(self._call(self._control.GetLoad, pb.GetLoadRequest()))

    def abort(self, *request_ids: str) -> dict[str, int]:
        """End live requests by id, whoever sent them; how many each id had."""
        response: pb.AbortResponse = self._call(self._control.Abort, pb.AbortRequest(request_ids=request_ids))
        return {entry.request_id: entry.count for entry in response.aborted}

    def embed(self, request: api.EmbedRequest, timeout_seconds: float | None = None) -> api.Embeddings:
        """One vector per input; needs an embedding model."""
        message = grpc_map.embed_request_message(request)
        return grpc_map.embeddings(self._call(self._inference.Embed, message, timeout_seconds))

    def score(self, request: api.ScoreRequest, timeout_seconds: float | None = None) -> api.Scores:
        """How near each document is to the query; needs an embedding model."""
        message = grpc_map.score_request_message(request)
        return grpc_map.scores(self._call(self._inference.Score, message, timeout_seconds))

    def explain(self, request_id: str) -> api.Explained:
        """Why a live or lately ended request waits, or how it went."""
        return grpc_map.explanation(
            self._call(self._control.ExplainRequest, pb.ExplainRequestRequest(request_id=request_id))
        )

    def status(self, after_step: int | None = None) -> api.EngineStatus:
        """What the status page shows, with step records newer than `after_step`."""
        return grpc_map.status(self._call(self._control.GetStatus, pb.GetStatusRequest(after_step=after_step)))

    def _call(self, method: Any, message: Any, timeout_seconds: float | None = None) -> Any:
        with _errors():
            return method(message, timeout=timeout_seconds or self._timeout, metadata=self._metadata)


class AsyncClient:
    """`Client` for asyncio; construct it on a running loop."""

    def __init__(
        self, target: str, api_key: str | None = None, timeout_seconds: float | None = None, *, tls: bool = False,
        tls_ca_file: str = "", tls_cert_file: str = "", tls_key_file: str = "",
    ) -> None:  # fmt: skip
        credentials = _credentials(tls, tls_ca_file, tls_cert_file, tls_key_file)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
        stubs: Any = quire_pb2_grpc  # made without annotations
        self._inference: Any = stubs.InferenceStub(self._channel)
        self._control: Any = stubs.ControlStub(self._channel)
        self._metadata = _metadata(api_key)
        self._timeout = timeout_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close(None)

    async def generate(self, request: api.GenerateRequest, timeout_seconds: float | None = None) -> api.Generation:
        """The whole answer; cancelling the await cancels it on the server."""
        message = grpc_map.generate_request_message(request)
        return grpc_map.generation(await self._call(self._inference.Generate, message, timeout_seconds))

    async def stream(
        self, request: api.GenerateRequest, timeout_seconds: float | None = None
    ) -> AsyncIterator[api.Event]:
        """The answer's events as they come. Leave it through `contextlib.aclosing` to cancel at once."""
        call = self._inference.Stream(
            grpc_map.generate_request_message(request),
            timeout=timeout_seconds or self._timeout,
            metadata=self._metadata,
        )
        try:
            async with _async_errors():
                async for message in call:
                    yield grpc_map.event(message)
        finally:
            call.cancel()

    async def tokenize(
        self, text: str | api.Chat, add_special_tokens: bool | None = None, return_texts: bool | None = None,
        parse_special: bool | None = None,
    ) -> api.Tokens:  # fmt: skip
        message = _tokenize_request(text, add_special_tokens, return_texts, parse_special)
        return grpc_map.tokens(await self._call(self._inference.Tokenize, message))

    async def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool | None = None) -> str:
        message = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        response: pb.DetokenizeResponse = await self._call(self._inference.Detokenize, message)
        return response.text

    async def server_info(self) -> api.ServerInfo:
        return grpc_map.server_info(await self._call(self._control.GetServerInfo, pb.GetServerInfoRequest()))

    async def models(self) -> tuple[api.Model, ...]:
        return grpc_map.models(await self._call(self._control.ListModels, pb.ListModelsRequest()))

    async def load(self) -> api.EngineLoad:
        return grpc_map.load(await self._call(self._control.GetLoad, pb.GetLoadRequest()))

    async def abort(self, *request_ids: str) -> dict[str, int]:
        """End live requests by id, whoever sent them; how many each id had."""
        response: pb.AbortResponse = await self._call(self._control.Abort, pb.AbortRequest(request_ids=request_ids))
        return {entry.request_id: entry.count for entry in response.aborted}

    async def embed(self, request: api.EmbedRequest, timeout_seconds: float | None = None) -> api.Embeddings:
        """One vector per input; needs an embedding model."""
        message = grpc_map.embed_request_message(request)
        return grpc_map.embeddings(await self._call(self._inference.Embed, message, timeout_seconds))

    async def score(self, request: api.ScoreRequest, timeout_seconds: float | None = None) -> api.Scores:
        """How near each document is to the query; needs an embedding model."""
        message = grpc_map.score_request_message(request)
        return grpc_map.scores(await self._call(self._inference.Score, message, timeout_seconds))

    async def explain(self, request_id: str) -> api.Explained:
        """Why a live or lately ended request waits, or how it went."""
        return grpc_map.explanation(
            await self._call(self._control.ExplainRequest, pb.ExplainRequestRequest(request_id=request_id))
        )

    async def status(self, after_step: int | None = None) -> api.EngineStatus:
        """What the status page shows, with step records newer than `after_step`."""
        return grpc_map.status(await self._call(self._control.GetStatus, pb.GetStatusRequest(after_step=after_step)))

    async def _call(self, method: Any, message: Any, timeout_seconds: float | None = None) -> Any:
        async with _async_errors():
            return await method(message, timeout=timeout_seconds or self._timeout, metadata=self._metadata)


def _metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {api_key}"),) if api_key is not None else ()


def _credentials(tls: bool, ca_file: str, cert_file: str, key_file: str) -> grpc.ChannelCredentials | None:
    """None: plain text."""
    files = {"tls_ca_file": ca_file, "tls_cert_file": cert_file, "tls_key_file": key_file}
    if not (tls or any(files.values())):
        return None
    if bool(cert_file) != bool(key_file):
        raise ValueError("tls_cert_file: needs tls_key_file, and the other way round; give both or none")
    contents: dict[str, bytes | None] = {}
    for name, path in files.items():
        try:
            contents[name] = Path(path).read_bytes() if path else None
        except OSError as error:
            raise ValueError(f"{name} {path}: {error.strerror}") from error
    return grpc.ssl_channel_credentials(contents["tls_ca_file"], contents["tls_key_file"], contents["tls_cert_file"])


def _tokenize_request(
    text: str | api.Chat, add_special_tokens: bool | None, return_texts: bool | None, parse_special: bool | None
) -> pb.TokenizeRequest:
    message = pb.TokenizeRequest(
        add_special_tokens=add_special_tokens, return_texts=return_texts, parse_special=parse_special
    )
    if isinstance(text, str):
        message.text = text
    else:
        message.chat.CopyFrom(grpc_map.chat_message(text))
    return message


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise _request_error(error) from None


@asynccontextmanager
async def _async_errors() -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _request_error(error) from None


def _request_error(error: Any) -> api.RequestError:
    return from_status(error.code(), error.details() or "", error.trailing_metadata() or ())
