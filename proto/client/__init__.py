"""A typed client for services that talk to quire over gRPC. `Client` blocks, `AsyncClient` awaits; both stream.

    with Client("127.0.0.1:50051") as client:
        for event in client.stream(GenerateRequest(input="Once upon a time", max_tokens=32)):
            if isinstance(event, Delta):
                print(event.text, end="")

Every failure is a `RequestError` with its status, reason and field. Leaving a stream early cancels it on the server.
"""

from quire.proto.client.aio import AsyncClient as AsyncClient
from quire.proto.client.blocking import Client as Client
