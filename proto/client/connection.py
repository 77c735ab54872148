"""The parts both clients share: channel options, keys, TLS, and failures as `RequestError`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from quire.proto import api, grpc_map
from quire.proto.generated import quire_pb2 as pb
from quire.proto.grpc_status import from_status

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
"""A server allows pings every 5 s; answers with many logprobs are large."""


def call_metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """The key as gRPC metadata; none without a key."""
    return (("authorization", f"Bearer {api_key}"),) if api_key is not None else ()


def channel_credentials(tls: bool, ca_file: str, cert_file: str, key_file: str) -> grpc.ChannelCredentials | None:
    """Credentials of a TLS connection; None for a plain one. Raises `ValueError` naming a file that cannot be read."""
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


def tokenize_request(
    text: str | api.Chat, add_special_tokens: bool | None, return_texts: bool | None, parse_special: bool | None
) -> pb.TokenizeRequest:
    """The message for a text or a chat."""
    message = pb.TokenizeRequest(
        add_special_tokens=add_special_tokens, return_texts=return_texts, parse_special=parse_special
    )
    if isinstance(text, str):
        message.text = text
    else:
        message.chat.CopyFrom(grpc_map.chat_message(text))
    return message


@contextmanager
def request_errors() -> Iterator[None]:
    """A failed call inside raises `RequestError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise _request_error(error) from None


@asynccontextmanager
async def async_request_errors() -> AsyncIterator[None]:
    """`request_errors` for asyncio. A call that ends with its client does not cancel the task that waits for it."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _request_error(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise from_status(grpc.StatusCode.CANCELLED, "the client was closed before the call had ended", ()) from None


def _request_error(error: Any) -> api.RequestError:
    return from_status(error.code(), error.details() or "", error.trailing_metadata() or ())
