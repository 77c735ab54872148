"""A model with windows under `quire serve` on two ranks: the tokens of transformers, whatever is cached."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from parts.clock import eventually
from parts.continued import continued

from quire.proto.api import GenerateRequest

SLIDING, FULL = "sliding_attention", "full_attention"
CONFIG = {
    "num_hidden_layers": 5,
    "use_sliding_window": True,
    "sliding_window": 11,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING],
}
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def folder(tiny_checkpoint):
    return tiny_checkpoint("Qwen2ForCausalLM", **CONFIG)


@pytest.fixture(scope="module")
def expected(folder):
    """Prompts that begin alike, and what transformers adds to each."""
    text = torch.randint(0, 320, (70,), generator=torch.Generator().manual_seed(3)).tolist()
    prompts = [text[:length] for length in (1, 9, 11, 12, 30, 47, 48, 70)]
    return prompts, continued(folder, prompts, NUM_TOKENS)


def test_windows_give_the_tokens_of_transformers_through_real_processes(serve, folder, expected):
    flags = ("--block-size=4", "--max-num-batched-tokens=24", "--max-num-seqs=4", "--max-model-len=96")
    engine = serve(str(folder), *flags, "--tensor-parallel-size=2", "--kv-cache-memory-bytes=96KiB")
    assert "4 layers with a window of 11" in engine.log

    def made(prompt):
        asked = GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (output,) = engine.client.generate(asked).outputs
        return list(output.token_ids)

    prompts, tokens = expected
    for _ in range(2):
        with ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(made, prompts)) == tokens
    eventually(engine.idle)
    assert engine.stop() == 0
