"""Bearer keys. Default deny: every method needs a key, known or not, except the health service."""

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from quire.proto.api import RequestError
from quire.proto.grpc_status import to_status

EXEMPT = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List"})

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


class KeyFileError(ValueError):
    """The file of keys cannot be used."""


class Keys:
    """Digests of the accepted keys; a comparison takes the same time whichever key, if any, is right."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @classmethod
    def read(cls, path: str) -> "Keys":
        """One key per line; empty lines and lines that begin with # do not count. Raises `KeyFileError`."""
        try:
            with open(path, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"api_key_file: {path}: {error}") from error
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise KeyFileError(f"api_key_file: {path}: holds no key; write one per line")
        for number, key in enumerate(keys, 1):
            if not re.fullmatch(r"[\x21-\x7e]{8,1024}", key):
                raise KeyFileError(f"api_key_file: {path}: key {number} must be 8 to 1024 visible ASCII characters")
        return cls(keys)

    def accept(self, authorization: str | bytes | None) -> bool:
        """Whether `authorization` is `Bearer KEY` with one of the keys."""
        if not isinstance(authorization, str):
            return False
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses before a request is read. Says nothing about which part of a credential was wrong."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        if handler_call_details.method in EXEMPT:
            return await continuation(handler_call_details)
        given = [value for key, value in handler_call_details.invocation_metadata or () if key == "authorization"]
        if len(given) == 1 and self._keys.accept(given[0]):
            return await continuation(handler_call_details)
        return _REFUSAL


async def _refuse(request: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    code, message, trailers = to_status(RequestError("UNAUTHENTICATED", "a valid bearer key is needed"))
    await context.abort(code, message, trailers)


_REFUSAL = grpc.stream_stream_rpc_method_handler(_refuse)
"""Fits every arity: it reads nothing and answers with a status."""
