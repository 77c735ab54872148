"""Record of one streamed request as its client saw it, and the percentiles of many."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from quire.deploy.bench.load.prompts import Prompt
from quire.deploy.bench.report.report import Figure, percentiles
from quire.proto.generated import quire_pb2, quire_pb2_grpc

OK = "OK"

Metadata = tuple[tuple[str, str], ...]
"""gRPC metadata of a call."""


@dataclass(slots=True)
class RequestRecord:
    """One streamed request as its client saw it. Moments are of `time.monotonic`, in seconds."""

    sent: float
    ended: float = 0.0
    status: str = "INCOMPLETE"
    """OK, a gRPC status, a finish reason that is a failure, or INCOMPLETE for a stream that ended without a verdict."""
    moments: list[float] = field(default_factory=list)
    """Arrivals of the messages that carried tokens."""
    counts: list[int] = field(default_factory=list)
    """Tokens in each."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Tokens as the server counted them."""
    names_tokens: bool = True
    """False for a server that sends text alone: each message then counts as one token."""

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive messages, which is how long a reader waits; tokens sent together share one."""
        return [later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False)]


async def stream(
    stub: quire_pb2_grpc.InferenceStub, request: quire_pb2.GenerateRequest, metadata: Metadata = ()
) -> RequestRecord:
    """Send one request and read its stream to the end; failures are in the record's status, never raised."""
    record = RequestRecord(sent=time.monotonic())
    try:
        async for event in stub.Stream(request, metadata=metadata):
            if event.HasField("delta"):
                if event.delta.token_ids:
                    record.moments.append(time.monotonic())
                    record.counts.append(len(event.delta.token_ids))
            elif event.HasField("finished"):
                finished = event.finished
                record.prompt_tokens = finished.usage.prompt_tokens
                record.completion_tokens = finished.usage.completion_tokens
                wanted = finished.finish_reason in (quire_pb2.FINISH_REASON_LENGTH, quire_pb2.FINISH_REASON_STOP)
                record.status = OK if wanted else quire_pb2.FinishReason.Name(finished.finish_reason)
    except grpc.aio.AioRpcError as error:
        record.status = error.code().name
    record.ended = time.monotonic()
    return record


def request_of(prompt: Prompt, temperature: float, model: str, seed: int) -> quire_pb2.GenerateRequest:
    request = quire_pb2.GenerateRequest(
        prompt_token_ids=quire_pb2.TokenIds(ids=prompt.token_ids),
        max_tokens=prompt.output_len,
        temperature=temperature,
        ignore_eos=True,
        seed=seed,
    )
    if model:
        request.model = model
    return request


def summarize(records: Sequence[RequestRecord]) -> dict[str, Figure]:
    """The figures of `quire bench serve`, over the requests that succeeded; `errors` counts the others by status.

    Rates count from the first request sent to the last one ended. `tpot` is the mean time per token after the first.
    `input_tokens` is what the server counted.
    """
    done = [record for record in records if record.status == OK and record.num_tokens]
    seconds = max(record.ended for record in records) - min(record.sent for record in records)
    tokens = sum(record.num_tokens for record in done)
    return {
        **percentiles("ttft_ms", first_token_ms(done), (50, 95, 99)),
        **percentiles("itl_ms", [gap * 1e3 for record in done for gap in record.gaps], (50, 95, 99)),
        **percentiles("tpot_ms", time_per_token_ms(done), (50,)),
        **percentiles("e2e_ms", [(record.ended - record.sent) * 1e3 for record in done], (50, 99)),
        "output_tokens_per_s": tokens / seconds,
        "requests_per_s": len(done) / seconds,
        "input_tokens": sum(record.prompt_tokens for record in done),
        "output_tokens": tokens,
        "completed": len(done),
        "seconds": seconds,
        "errors": dict(Counter(record.status for record in records if record.status != OK)),
    }


def first_token_ms(records: Sequence[RequestRecord]) -> list[float]:
    return [(record.moments[0] - record.sent) * 1e3 for record in records if record.moments]


def time_per_token_ms(records: Sequence[RequestRecord]) -> list[float]:
    """Milliseconds from a record's first to its last message, per token that came after the first message."""
    return [
        (record.moments[-1] - record.moments[0]) * 1e3 / (record.num_tokens - record.counts[0])
        for record in records
        if record.num_tokens > record.counts[0]
    ]
