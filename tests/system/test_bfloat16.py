"""A bfloat16 checkpoint behind `--dtype auto`: greedy text is that of transformers' bfloat16 up to ties.

Each token of a text is judged given those before: transformers would take it, or it is as likely up to the bound.
"""

import functools
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from parts.clock import eventually
from transformers import AutoModelForCausalLM

from quire.deploy.model_path import EMBEDDED
from quire.proto.api import Delta, GenerateRequest
from quire.worker.device.machine import bf16_products

BOUND = 2**-6
"""Of a logit, over the largest magnitude of its row: four roundings of 2^-8."""
NUM_TOKENS = 32
LENGTHS = (1, 2, 15, 16, 17, 33, 64, 65, 100, 150, 200, 300)
"""Tokens of the prompts, which all begin alike."""
ENGINES = {
    "prefix cache": (),
    "two ranks, no prefix cache, chunks": (
        *("--tensor-parallel-size=2", "--no-enable-prefix-caching"),
        *("--max-num-batched-tokens=48", "--max-num-seqs=16"),
    ),
}
Logits = Callable[[tuple[int, ...]], list[torch.Tensor]]


@pytest.fixture(scope="module")
def logits() -> Logits:
    """Of the last NUM_TOKENS places of a text, from the model in bfloat16 and in float32. Most texts come again."""
    dtypes = (torch.bfloat16, torch.float32)
    models = [AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=dtype).eval() for dtype in dtypes]

    @functools.cache
    def last(given: tuple[int, ...]) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [model(torch.tensor([given])).logits[0, -NUM_TOKENS:].float() for model in models]

    return last


def judge(logits: Logits, prompt: list[int], new: list[int], logprobs: list[float]) -> None:
    stored, exact = logits((*prompt, *new[:-1]))
    bound = BOUND * exact.abs().amax(1)
    chosen = torch.tensor(new)[:, None]
    best, second = stored.topk(2).values.unbind(1)
    assert (best - stored.gather(1, chosen)[:, 0] <= bound).all()
    assert (best - second > bound).float().mean() > 0.5, "ties alone would prove nothing"
    # every logit within the bound: a logprob, the difference of one and their logarithmic sum, within twice of it
    error = exact.log_softmax(1).gather(1, chosen)[:, 0] - torch.tensor(logprobs)
    assert (error.abs() <= 2 * bound).all()


@pytest.mark.parametrize(
    "name", ["prefix cache", pytest.param("two ranks, no prefix cache, chunks", marks=pytest.mark.thorough)]
)
def test_greedy_text_is_that_of_transformers_up_to_ties(name, serve, logits):
    engine = serve(str(EMBEDDED), "--dtype=auto", *ENGINES[name])
    taken = f"bfloat16 by {bf16_products()}" if bf16_products() else "float32"
    assert f"in {taken}" in engine.log
    text = engine.client.tokenize(Path(textwrap.__file__).read_text()).token_ids
    prompts = [list(text[:length]) for length in LENGTHS]

    def whole(prompt: list[int]) -> tuple[list[int], list[float]]:
        (output,) = engine.client.generate(asked(prompt)).outputs
        return list(output.token_ids), [entry.logprob for entry in output.logprobs]

    def streamed(prompt: list[int]) -> tuple[list[int], list[float]]:
        deltas = [event for event in engine.client.stream(asked(prompt)) if isinstance(event, Delta)]
        assert deltas  # one where a busy machine sent all at once
        tokens = [token for delta in deltas for token in delta.token_ids]
        return tokens, [entry.logprob for delta in deltas for entry in delta.logprobs]

    with ThreadPoolExecutor(len(prompts)) as pool:
        rounds = [list(pool.map(call, prompts)) for call in (whole, streamed)]
    for made in rounds:
        for prompt, (tokens, logprobs) in zip(prompts, made, strict=True):
            assert len(tokens) == len(logprobs) == NUM_TOKENS
            judge(logits, prompt, tokens, logprobs)
    eventually(engine.idle)
    assert engine.stop() == 0


def asked(prompt: list[int]) -> GenerateRequest:
    return GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
