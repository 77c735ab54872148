"""gRPC connections of a load generator: enough of them that a server's limit of streams per connection is not met."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle

import grpc

from quire.proto.generated import quire_pb2_grpc
from quire.proto.transport.grpc_poller import unblocked_poller

STREAMS_PER_CHANNEL = 512
MOST_CHANNELS = 64
OPTIONS = (("grpc.max_receive_message_length", 64 << 20), ("grpc.use_local_subchannel_pool", 1))


@asynccontextmanager
async def connect(targets: Sequence[str], streams: int) -> AsyncIterator[Iterator[quire_pb2_grpc.InferenceStub]]:
    """An endless round of stubs, one for each connection, for `streams` streams at a time over these servers."""
    per_target = min(MOST_CHANNELS, -(-streams // (STREAMS_PER_CHANNEL * len(targets))))
    with unblocked_poller():
        channels = [grpc.aio.insecure_channel(target, options=OPTIONS) for _ in range(per_target) for target in targets]
    try:
        yield cycle([quire_pb2_grpc.InferenceStub(channel) for channel in channels])  # type: ignore[no-untyped-call]
    finally:
        for channel in channels:
            await channel.close(None)
