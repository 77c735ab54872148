"""The clients of `quire bench control`, in a process of their own: streams that are always open.

`python -m quire.deploy.bench.load.streams OPTIONS` prints one JSON object. Every stream asks again when its answer is
complete, until the window has ended; then the last answers are read to their end, so that every token can be counted.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np

from quire.deploy.bench.load.grpc_channels import connect
from quire.deploy.bench.load.http_client import HttpClient, body_of
from quire.deploy.bench.load.prompts import Prompt
from quire.deploy.bench.load.request_record import OK, RequestRecord, first_token_ms, request_of, stream

Send = Callable[[Prompt, int], Awaitable[RequestRecord]]
"""Takes a prompt and a seed, and reads the answer to its end."""


class StreamsOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    targets: tuple[str, ...]
    """Frontends; stream i goes to number i modulo their count."""
    http: bool
    """The targets are of the HTTP API."""
    streams: int
    prompt_len: int
    output_len: int
    first_token: int
    """Prompt tokens are drawn from [first_token, vocab_size)."""
    vocab_size: int
    begin: float
    """The window whose tokens are counted, on CLOCK_MONOTONIC, which all processes of a machine share."""
    end: float
    seed: int


class StreamingClients:
    """All streams of this process, and what they received."""

    def __init__(self, options: StreamsOptions) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)
        self.records: list[RequestRecord] = []
        self.expected: list[int] = []
        self.cpu_seconds = 0.0

    async def run(self) -> None:
        options = self._options
        if options.http:
            client = HttpClient(options.targets, {})
            await self._all(
                lambda prompt, seed: client.stream(body_of(prompt.token_ids, prompt.output_len, 1.0, "", seed))
            )
            client.close()
            return
        async with connect(options.targets, options.streams) as stubs:
            await self._all(lambda prompt, seed: stream(next(stubs), request_of(prompt, 1.0, "", seed)))

    async def _all(self, send: Send) -> None:
        await asyncio.gather(self._clock(), *(self._stream(send, index) for index in range(self._options.streams)))

    async def _clock(self) -> None:
        await asyncio.sleep(self._options.begin - time.monotonic())
        begin = time.process_time()
        await asyncio.sleep(self._options.end - time.monotonic())
        self.cpu_seconds = time.process_time() - begin

    async def _stream(self, send: Send, index: int) -> None:
        options = self._options
        # the first answers differ in length, so that the streams do not all ask again in the same step
        output_len = max(1, options.output_len * (index + 1) // options.streams)
        while time.monotonic() < options.end:
            token_ids = self._random.integers(options.first_token, options.vocab_size, options.prompt_len).tolist()
            record = await send(Prompt(token_ids, output_len), index)
            self.records.append(record)
            self.expected.append(output_len)
            if record.status != OK:
                return
            output_len = options.output_len

    def result(self) -> dict[str, object]:
        """Counts of the window, and the totals that must equal what the worker produced."""
        begin, end = self._options.begin, self._options.end
        window = [
            (count, gap)
            for record in self.records
            for moment, count, gap in zip(record.moments, record.counts, [None, *record.gaps], strict=False)
            if begin <= moment < end
        ]
        return {
            "tokens_in_window": sum(count for count, _ in window),
            "messages_in_window": len(window),
            "gap_ms": [round(gap * 1e3, 3) for _, gap in window if gap is not None],
            "ttft_ms": first_token_ms([record for record in self.records if begin <= record.sent < end]),
            "cpu_seconds": self.cpu_seconds,
            "delivered": sum(record.num_tokens for record in self.records),
            "requests": len(self.records),
            "failures": [
                f"{record.status}: read {record.num_tokens}, reported {record.completion_tokens}, asked {expected}"
                for record, expected in zip(self.records, self.expected, strict=True)
                if record.status != OK or not record.num_tokens == record.completion_tokens == expected
            ],
        }


def main() -> int:
    clients = StreamingClients(msgspec.json.decode(sys.argv[1], type=StreamsOptions))
    asyncio.run(clients.run())
    print(json.dumps(clients.result()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
