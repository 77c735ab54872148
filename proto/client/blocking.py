"""The client that blocks."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from quire.proto import api, grpc_map
from quire.proto.client.connection import (
    OPTIONS,
    call_metadata,
    channel_credentials,
    request_errors,
    tokenize_request,
)
from quire.proto.generated import quire_pb2 as pb
from quire.proto.generated import quire_pb2_grpc


class Client:
    """One connection to one target (`host:port`), usable from several threads."""

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
        """`timeout_seconds` is the deadline of every call that names none; None leaves it to the server.

        `tls`, or any of the PEM files, makes it a TLS connection: `tls_ca_file` holds who may have signed the server's
        certificate (empty: gRPC's own list), the other two are what a server with a client CA asks for.
        Raises `ValueError` naming a file that cannot be read.
        """
        credentials = channel_credentials(tls, tls_ca_file, tls_cert_file, tls_key_file)
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=OPTIONS)
        stubs: Any = quire_pb2_grpc  # made without annotations
        self._inference: Any = stubs.InferenceStub(self._channel)
        self._control: Any = stubs.ControlStub(self._channel)
        self._metadata = call_metadata(api_key)
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
            with request_errors():
                for message in call:
                    yield grpc_map.event(message)
        finally:
            call.cancel()

    def tokenize(
        self,
        text: str | api.Chat,
        add_special_tokens: bool | None = None,
        return_texts: bool | None = None,
        parse_special: bool | None = None,
    ) -> api.Tokens:
        message = tokenize_request(text, add_special_tokens, return_texts, parse_special)
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
        """Score of each document for the query; needs an embedding model or a cross-encoder."""
        message = grpc_map.score_request_message(request)
        return grpc_map.scores(self._call(self._inference.Score, message, timeout_seconds))

    def classify(self, request: api.ClassifyRequest, timeout_seconds: float | None = None) -> api.Classifications:
        """Numbers of labels for each input; needs a model with a head for them."""
        message = grpc_map.classify_request_message(request)
        return grpc_map.classifications(self._call(self._inference.Classify, message, timeout_seconds))

    def explain(self, request_id: str) -> api.Explained:
        """History of a live or lately ended request: why it waits, or how it went."""
        return grpc_map.explanation(
            self._call(self._control.ExplainRequest, pb.ExplainRequestRequest(request_id=request_id))
        )

    def status(self, after_step: int | None = None) -> api.EngineStatus:
        """The engine at one instant, with step records newer than `after_step`."""
        return grpc_map.status(self._call(self._control.GetStatus, pb.GetStatusRequest(after_step=after_step)))

    def _call(self, method: Any, message: Any, timeout_seconds: float | None = None) -> Any:
        with request_errors():
            return method(message, timeout=timeout_seconds or self._timeout, metadata=self._metadata)
