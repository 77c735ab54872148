"""The client for asyncio."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from quire.proto import api, grpc_map
from quire.proto.client.connection import (
    OPTIONS,
    async_request_errors,
    call_metadata,
    channel_credentials,
    tokenize_request,
)
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc
from quire.proto.transport.grpc_poller import unblocked_poller


class AsyncClient:
    """`Client` for asyncio; construct it on a running loop."""

    def __init__(
        self,
        target: str,
        api_key: str | None = None,
        timeout_seconds: float | None = None,
        *,
        tls: bool = False,
        tls_ca_file: str = "",
        tls_cert_file: str = "",
        tls_key_file: str = "",
    ) -> None:
        credentials = channel_credentials(tls, tls_ca_file, tls_cert_file, tls_key_file)
        with unblocked_poller():
            if credentials is None:
                self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
        stubs: Any = quire_pb2_grpc  # made without annotations
        self._inference: Any = stubs.InferenceStub(self._channel)
        self._control: Any = stubs.ControlStub(self._channel)
        self._metadata = call_metadata(api_key)
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
            async with async_request_errors():
                async for message in call:
                    yield grpc_map.event(message)
        finally:
            call.cancel()

    async def tokenize(
        self,
        text: str | api.Chat,
        add_special_tokens: bool | None = None,
        return_texts: bool | None = None,
        parse_special: bool | None = None,
    ) -> api.Tokens:
        message = tokenize_request(text, add_special_tokens, return_texts, parse_special)
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
        """Score of each document for the query; needs an embedding model or a cross-encoder."""
        message = grpc_map.score_request_message(request)
        return grpc_map.scores(await self._call(self._inference.Score, message, timeout_seconds))

    async def classify(self, request: api.ClassifyRequest, timeout_seconds: float | None = None) -> api.Classifications:
        """Numbers of labels for each input; needs a model with a head for them."""
        message = grpc_map.classify_request_message(request)
        return grpc_map.classifications(await self._call(self._inference.Classify, message, timeout_seconds))

    async def explain(self, request_id: str) -> api.Explained:
        """History of a live or lately ended request: why it waits, or how it went."""
        return grpc_map.explanation(
            await self._call(self._control.ExplainRequest, pb.ExplainRequestRequest(request_id=request_id))
        )

    async def status(self, after_step: int | None = None) -> api.EngineStatus:
        """The engine at one instant, with step records newer than `after_step`."""
        return grpc_map.status(await self._call(self._control.GetStatus, pb.GetStatusRequest(after_step=after_step)))

    async def _call(self, method: Any, message: Any, timeout_seconds: float | None = None) -> Any:
        async with async_request_errors():
            return await method(message, timeout=timeout_seconds or self._timeout, metadata=self._metadata)
