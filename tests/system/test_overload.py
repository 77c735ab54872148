"""Ten times the streams that an engine has places for, with a clock on those who are refused and on a neighbour."""

import asyncio
import re
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from quire.proto.api import Delta, GenerateRequest, RequestError
from quire.proto.client import AsyncClient

NUM_PLACES = 20
NUM_STREAMS = 200
REFUSALS_EACH = 5


@pytest.fixture(scope="module")
def model(tiny_checkpoint) -> Path:
    return tiny_checkpoint("LlamaForCausalLM", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def engine(serve, model):
    return serve(str(model), "--max-num-seqs", str(NUM_PLACES // 2), "--max-num-queued-reqs", str(NUM_PLACES // 2))


def test_the_excess_is_refused_soon_the_others_are_answered_and_a_stream_beside_them_moves(engine):
    ends: Counter[str] = Counter()
    refused: list[float] = []
    advice: list[float] = []
    gaps: list[float] = []

    async def ask(client: AsyncClient) -> None:
        """Until it is answered, or was refused often enough."""
        await asyncio.sleep(0.5)
        for _ in range(REFUSALS_EACH):
            began = time.monotonic()
            try:
                await client.generate(GenerateRequest(input=[5, 6], max_tokens=30, ignore_eos=True))
            except RequestError as error:
                refused.append(time.monotonic() - began)
                ends[error.reason] += 1
                advice.append(error.retry_after_seconds)
                await asyncio.sleep(0.3)
            else:
                ends["answered"] += 1
                return

    async def read(client: AsyncClient) -> None:
        last = 0.0
        asked = GenerateRequest(input=[5, 6], max_tokens=8000, ignore_eos=True)
        async for event in client.stream(asked):
            if isinstance(event, Delta):
                now = time.monotonic()
                if last:
                    gaps.append(now - last)
                last = now

    async def main() -> None:
        async with AsyncClient(engine.target) as client:
            neighbour = asyncio.create_task(read(client))
            await asyncio.gather(*(ask(client) for _ in range(NUM_STREAMS)))
            neighbour.cancel()
            await asyncio.gather(neighbour, return_exceptions=True)

    asyncio.run(main())
    assert set(ends) == {"answered", "QUEUE_FULL"}
    assert ends["answered"] >= NUM_PLACES
    assert min(advice) > 0
    with urllib.request.urlopen(f"http://{engine.http}/metrics") as page:
        early = re.search(r"^quire_early_refusals_total (\S+)", page.read().decode(), re.MULTILINE)
    assert early is not None
    assert float(early[1]) > len(refused) / 2, "the frontend itself says what the scheduler has said"
    # generous: client, engine and whatever else share two cores here; the figures are the bench's
    assert sorted(refused)[int(0.9 * len(refused))] < 2.0
    assert max(gaps) < 2.0
    info = engine.client.load()
    assert info.num_waiting <= NUM_PLACES // 2
