"""A server with keys, asked over plain sockets."""

import asyncio
import ssl
from dataclasses import dataclass

from parts.clock import GUARD

USER, BOSS = "user-key-1234", "boss-key-1234"


@dataclass
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


async def raw(port: int, request: bytes, context: ssl.SSLContext | None = None) -> Answer:
    """One request as it is, one answer; the connection is closed by the server or after the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(request)
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GUARD)).decode("latin-1").split("\r\n")
        headers = [(key.lower(), value.strip()) for key, _, value in (line.partition(":") for line in head[1:] if line)]
        length = int(dict(headers).get("content-length", 0))
        body = b"" if request.startswith(b"HEAD") else await reader.readexactly(length)
        return Answer(int(head[0].split()[1]), headers, body)
    finally:
        writer.close()


async def ask(
    port: int,
    target: str,
    method: str = "GET",
    key: str | None = None,
    host: str | None = "127.0.0.1",
    body: str = "",
    **headers: str,
) -> Answer:
    lines = [f"{method} {target} HTTP/1.1", f"content-length: {len(body)}"]
    lines += [f"host: {host}"] if host is not None else []
    lines += [f"authorization: Bearer {key}"] if key is not None else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return await raw(port, "\r\n".join([*lines, "", body]).encode())
