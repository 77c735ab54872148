"""The same request gives the same tokens, however it is scheduled: whole, chunked, cached, preempted, sharded.

The reference is `transformers` (fp32, CPU, greedy). Sampled texts have no such reference; they must be equal to
themselves across all engines.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from parts.clock import eventually
from parts.continued import continued
from parts.recorded import recorded

from quire.proto.api import GenerateRequest, Generation

NUM_REQUESTS = 16
NUM_TOKENS = 40
# 6 query heads on 2 KV heads do not divide by 4 ranks: 8 on 2 do, with every KV head on two ranks
SHAPE = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128}
SMALL_POOL = 40 * 16 * 2 * 2 * 2 * 16 * 4  # 40 blocks of 16 tokens, 2 layers, keys and values, 2 heads of 16, fp32

ENGINES = {
    "whole": ("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"),
    "chunked": ("--max-num-batched-tokens", "24", "--max-num-seqs", "16", "--block-size", "8"),
    "few_at_a_time": ("--max-num-seqs", "3"),
    "preempted": ("--kv-cache-memory-bytes", str(SMALL_POOL), "--max-num-seqs", "16"),
    "two_ranks": ("--tensor-parallel-size", "2"),
    "four_ranks": ("--tensor-parallel-size", "4", "--max-num-batched-tokens", "64", "--max-num-seqs", "16"),
}


@pytest.fixture(scope="module")
def model(tiny_checkpoint) -> Path:
    return tiny_checkpoint("LlamaForCausalLM", **SHAPE)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(7)
    shared = [rng.randrange(3, 320) for _ in range(40)]
    lengths = [1, 2, 3, 15, 16, 17, 31, 32, 33, 48, 60, 75, 90, 100, 111, 120]
    return [
        (shared + [rng.randrange(3, 320) for _ in range(length)])[-length:] if length < 50 else
        (shared + [rng.randrange(3, 320) for _ in range(length)])[:length]
        for length in lengths
    ]  # fmt: skip


@pytest.fixture(scope="module")
def reference(model, prompts) -> list[list[int]]:
    return continued(model, prompts, NUM_TOKENS)


def greedy(prompt: list[int], **more: object) -> GenerateRequest:
    return GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, **more)


def sampled(prompt: list[int], index: int) -> GenerateRequest:
    return GenerateRequest(
        input=prompt, max_tokens=NUM_TOKENS, ignore_eos=True, seed=index, n=1 + index % 3, temperature=0.9,
        top_p=0.95, top_k=50, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, logprobs=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sampled_first() -> dict[str, list[list[list[int]]]]:
    """Sampled tokens of the first engine that ran: the others must equal them."""
    return {}


QUICK = {"chunked", "preempted", "two_ranks"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in ENGINES]
)
def test_tokens_do_not_depend_on_scheduling(name, serve, model, prompts, reference, sampled_first):
    engine = serve(str(model), *ENGINES[name])

    def at_once(requests: list[GenerateRequest]) -> list[Generation]:
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(engine.client.generate, requests))

    def tokens(generations: list[Generation]) -> list[list[list[int]]]:
        return [[list(output.token_ids) for output in generation.outputs] for generation in generations]

    expected = [[row] for row in reference]
    assert tokens(at_once([greedy(prompt) for prompt in prompts])) == expected
    again = at_once([greedy(prompt) for prompt in prompts])
    assert tokens(again) == expected
    drawn = tokens(at_once([sampled(prompt, index) for index, prompt in enumerate(prompts)]))
    assert drawn == sampled_first.setdefault("tokens", drawn)
    if name in ("chunked", "two_ranks"):
        cached = sum(generation.outputs[0].finished.usage.cached_tokens for generation in again)
        assert cached > 100, "the second round must have found its prompts in the prefix cache"
    if name == "preempted":
        assert engine.load().num_preemptions > 0, "the pool must be too small for this test to mean anything"
    eventually(engine.idle)
    assert engine.stop(drains=True) == 0


def logprobs_of(model: Path, tokens: list[int]) -> np.ndarray:
    """[tokens, vocabulary]"""

    def compute() -> np.ndarray:
        import torch
        from transformers import AutoModelForCausalLM

        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        with torch.no_grad():
            return torch.log_softmax(network(torch.tensor([tokens])).logits[0].double(), -1).numpy()

    return recorded("logprobs", [model, tokens], compute)


def test_logprobs_equal_the_reference(serve, model, prompts, reference):
    engine = serve(str(model), "--max-num-batched-tokens", "32", "--max-num-seqs", "16")
    prompt, continuation = prompts[9], reference[9]
    expected = logprobs_of(model, prompt + continuation)
    made = engine.client.generate(greedy(prompt, logprobs=3, prompt_logprobs=2, logprob_token_ids=[5, 6]))
    assert len(made.prompt_logprobs) == len(prompt) - 1
    for position, entry in enumerate(made.prompt_logprobs, start=1):
        assert entry.token_id == prompt[position]
        row = expected[position - 1]
        assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-4)
        assert [candidate.token_id for candidate in entry.top] == np.argsort(-row)[:2].tolist()
        assert [candidate.token_id for candidate in entry.named] == [5, 6]
        assert entry.named[0].logprob == pytest.approx(float(row[5]), abs=1e-4)
    for index, entry in enumerate(made.outputs[0].logprobs):
        row = expected[len(prompt) + index - 1]
        assert entry.token_id == continuation[index]
        assert entry.rank == 1
        assert [top.token_id for top in entry.top] == np.argsort(-row)[:3].tolist()
        for candidate in (*entry.top, *entry.named):
            assert candidate.logprob == pytest.approx(float(row[candidate.token_id]), abs=1e-4)
        assert [candidate.token_id for candidate in entry.named] == [5, 6]
    assert len(made.outputs[0].logprobs) == NUM_TOKENS
    only_prompt = engine.client.generate(
        GenerateRequest(input=prompt, max_tokens=2, prompt_logprobs=0, logprob_token_ids=[5])
    )
    assert [entry.named[0].token_id for entry in only_prompt.prompt_logprobs] == [5] * (len(prompt) - 1)
    assert not only_prompt.outputs[0].logprobs
