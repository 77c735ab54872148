"""Ten times the streams that an engine has places for, beside a neighbour whose tokens are the clock."""

import asyncio
import re
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
    waits: list[int] = []
    """Tokens of the neighbour that each refusal took."""
    advice: list[float] = []
    between: list[int] = []
    """Refusals between two events of the neighbour's."""
    num_tokens = 0

    async def ask(client: AsyncClient) -> None:
        """Until it is answered, or was refused often enough."""
        await asyncio.sleep(0.5)
        for _ in range(REFUSALS_EACH):
            began = num_tokens
            try:
                await client.generate(GenerateRequest(input=[5, 6], max_tokens=30, ignore_eos=True))
            except RequestError as error:
                waits.append(num_tokens - began)
                ends[error.reason] += 1
                advice.append(error.retry_after_seconds)
                await asyncio.sleep(0.3)
            else:
                ends["answered"] += 1
                return

    async def read(client: AsyncClient) -> None:
        nonlocal num_tokens
        num_refused = 0
        asked = GenerateRequest(input=[5, 6], max_tokens=8000, ignore_eos=True)
        async for event in client.stream(asked):
            if isinstance(event, Delta):
                num_tokens += len(event.token_ids)
                between.append(len(waits) - num_refused)
                num_refused = len(waits)

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
    assert float(early[1]) > 0, "the frontend itself says what the scheduler has said"
    assert sorted(waits)[int(0.9 * len(waits))] < 400
    assert num_tokens > NUM_STREAMS
    assert max(between) < 1.5 * NUM_STREAMS, "between two of the neighbour's events every caller was refused, and again"
    info = engine.load()
    assert info.num_waiting <= NUM_PLACES // 2
