"""A real engine explains itself: why a request waited, how it ran, who preempted it. Both doors and `top` agree."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from parts.clock import GUARD

from quire.proto.api import GenerateRequest, RequestError

SHAPE = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128}
SMALL_POOL = 20 * 16 * 2 * 2 * 2 * 16 * 4  # 20 blocks of 16 tokens, 2 layers, keys and values, 2 heads of 16, fp32
NAMES = tuple(f"request-{number}" for number in range(4))


@pytest.fixture(scope="module")
def engine(serve, tiny_checkpoint):
    """Four requests have run in a pool that holds one and a half of them, their prompts in chunks."""
    engine = serve(
        str(tiny_checkpoint("LlamaForCausalLM", **SHAPE)), "--kv-cache-memory-bytes", str(SMALL_POOL),
        "--max-num-batched-tokens", "32", "--max-num-seqs", "4", "--max-model-len", "256",
    )  # fmt: skip

    def ask(name: str) -> None:
        prompt = [3 + (7 * NAMES.index(name) + position) % 300 for position in range(100)]
        request = GenerateRequest(input=prompt, request_id=name, max_tokens=100, ignore_eos=True, temperature=0)
        engine.client.generate(request)

    with ThreadPoolExecutor(len(NAMES)) as pool:
        list(pool.map(ask, NAMES))
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def stories(engine):
    """The one story of each request, by name."""
    return {name: engine.client.explain(name).stories[0] for name in NAMES}


def get(engine, path: str) -> dict:
    address = engine.wait_for_line(r"HTTP on (http://[^\s,]+)").group(1)
    with urllib.request.urlopen(f"{address}{path}", timeout=GUARD) as answer:
        return json.load(answer)


def test_a_prompt_is_told_chunk_by_chunk(stories):
    for story in stories.values():
        words = [moment.what for moment in story.moments]
        assert (words[0], words[-1]) == ("queued", "finished")
        first = words.index("first_token")
        chunks = [moment for moment in story.moments[:first] if moment.what == "chunk"]
        assert sum(moment.num_tokens for moment in chunks) >= 100 - story.usage.cached_tokens
        assert all(0 < moment.num_tokens <= 32 for moment in chunks)
        assert story.usage.completion_tokens == 100


def test_who_waited_knows_for_what(stories):
    details = [moment.detail for story in stories.values() for moment in story.moments if moment.what == "blocked"]
    assert any("blocks are short" in detail for detail in details)


def test_who_was_preempted_knows_by_whom(engine, stories):
    told = [moment.detail for story in stories.values() for moment in story.moments if moment.what == "preempted"]
    assert len(told) == engine.load().num_preemptions > 0
    assert all(any(f"request {name!r}" in detail for name in NAMES) for detail in told)


def test_both_doors_tell_the_same(engine, stories):
    for name, story in stories.items():
        told = get(engine, f"/v1/requests/{quote(name)}")
        assert told["request_id"] == name
        (other,) = told["stories"]
        assert [moment["what"] for moment in other["moments"]] == [moment.what for moment in story.moments]
        assert [moment["seconds"] for moment in other["moments"]] == [moment.seconds for moment in story.moments]


def test_who_is_unknown_is_not_found(engine):
    with pytest.raises(RequestError) as caught:
        engine.client.explain("nobody")
    assert caught.value.reason == "UNKNOWN_REQUEST"


def test_the_status_tells_steps_with_measured_times_and_every_block(engine):
    status = engine.client.status()
    assert len(status.blocks) == status.load.num_blocks == 20
    assert [step.step for step in status.steps] == list(range(1, status.load.step + 1))
    assert sum(step.num_preempted for step in status.steps) == status.load.num_preemptions
    assert sum(step.num_admitted for step in status.steps) == len(NAMES) + status.load.num_preemptions
    assert all(step.device_seconds > 0 for step in status.steps)
    assert all(step.schedule_seconds > 0 and step.send_seconds > 0 for step in status.steps)
    assert get(engine, "/v1/status?after_step=3")["steps"][0]["step"] == 4


def test_top_prints_it_once_without_a_terminal(engine, quire):
    done = quire("top", "--target", engine.target)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ready  epoch 1 step" in done.stdout
    assert "of 20: " in done.stdout
