"""What either door says to a request that may be bad, and everything that was told so far."""

import dataclasses
import http.client
import json
import socket
from typing import Any

import grpc
from doors import json_request
from parts.clock import GUARD

from quire.proto.api import GenerateRequest, RequestError
from quire.proto.client import Client

KEY, ADMIN = "user-key-canary", "admin-key-canary"
GENERATE = "/quire.v1.Inference/Generate"
Metadata = tuple[tuple[str, str], ...]
JSON = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}


@dataclasses.dataclass
class Said:
    """A refusal: `status` is gRPC's name or HTTP's number. All words are empty for what was served."""

    status: str | int
    reason: str = ""
    field: str = ""
    message: str = ""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: str = ""


class Doors:
    """Everything that was said over them is kept, and searched for what must not be told."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.target, self.address = engine.target, engine.http
        self.client = Client(engine.target, api_key=KEY)
        self.told: list[str] = []
        self.draining = False

    def grpc(self, request: GenerateRequest, seconds: float | None = None) -> Said:
        try:
            self.client.generate(request, seconds)
        except RequestError as error:
            self.told += [str(error), str(error.metadata)]
            wait = {"retry-after": str(error.retry_after_seconds)} if error.retry_after_seconds else {}
            return Said(error.status, error.reason, error.field, error.message, wait)
        return Said("OK")

    def http(self, request: GenerateRequest) -> Said:
        path, body = json_request(request)
        return self.send(path, json.dumps(body).encode())

    def send(self, path: str, body: bytes | None, method: str = "POST", **headers: str) -> Said:
        connection = http.client.HTTPConnection(self.address, timeout=GUARD)
        try:
            given = JSON | {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {name: value for name, value in given.items() if value})
            response = connection.getresponse()
            return self._read(response.status, dict(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def raw(self, data: bytes) -> Said:
        """Read until the server closes."""
        with self.connect() as connection:
            connection.sendall(data)
            return self.read(connection)

    def connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=GUARD)

    def read(self, connection: socket.socket) -> Said:
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        return self._read(int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body.decode())

    def begin(self, request: GenerateRequest) -> socket.socket:
        """Asked over HTTP, and not read."""
        path, body = json_request(request)
        raw = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in JSON.items())]
        connection = self.connect()
        connection.sendall("\r\n".join([*lines, f"content-length: {len(raw)}", "", ""]).encode() + raw)
        return connection

    def call(
        self, data: bytes, method: str = GENERATE, key: str | None = KEY, metadata: Metadata = (), gzip: bool = False
    ) -> Said:
        """A message's bytes as they are."""
        metadata += (("authorization", f"Bearer {key}"),) if key is not None else ()
        with grpc.insecure_channel(self.target) as channel:
            try:
                compression = grpc.Compression.Gzip if gzip else None
                channel.unary_unary(method)(data, timeout=GUARD, metadata=metadata, compression=compression)
            except grpc.RpcError as error:
                self.told += [error.details(), str(error.trailing_metadata())]
                return Said(error.code().name, message=error.details())
        return Said("OK")

    def _read(self, status: int, headers: dict[str, str], body: str) -> Said:
        headers = {name.lower(): value for name, value in headers.items()}
        if status < 400:
            return Said(status, body=body)
        self.told += [body, str(headers)]
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code", "request_id"}
        assert error["request_id"]
        return Said(status, error["code"].upper(), error["param"] or "", error["message"], headers, body)
