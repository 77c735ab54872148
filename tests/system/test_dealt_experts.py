"""Experts dealt to the ranks of a real engine, disturbed: preempted, on cached prefixes, a rank killed amid answers."""

import sys
from pathlib import Path

import numpy as np
import pytest
from parts.continued import continued

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from parts.clock import eventually
from test_faults import RESTARTS, Reader, killed_amid, request

NUM_TOKENS, NUM_OF_FIRST = 150, 16
"""Tokens of an output, and those of them that are compared with transformers."""
SEVEN = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


@pytest.mark.thorough
def test_dealt_experts_go_on_through_preemptions_cached_prefixes_and_the_death_of_a_rank(serve, tiny_checkpoint):
    """Seven experts on two ranks, and a cache that holds two of the four outputs to their ends."""
    folder = tiny_checkpoint("Qwen2MoeForCausalLM", **SEVEN)
    flags = ("--tensor-parallel-size=2", "--enable-expert-parallel", "--max-num-batched-tokens=24", "--max-num-seqs=4")
    engine = serve(str(folder), *flags, "--kv-cache-memory-bytes=96KiB", *RESTARTS)
    common = np.random.default_rng(0).integers(3, 320, 40).tolist()
    prompts = [[*common, *range(10 + number, 15 + number)] for number in range(4)]

    def alone(prompt):
        return Reader(engine, request(prompt, NUM_TOKENS, cache_salt=f"alone {prompt[-1]}")).result()

    expected = [alone(prompt) for prompt in prompts]
    assert [tokens[:NUM_OF_FIRST] for tokens in expected] == continued(folder, prompts, NUM_OF_FIRST)
    assert engine.load().num_preemptions == 0
    readers = [Reader(engine, request(prompt, NUM_TOKENS)) for prompt in prompts]
    assert [reader.result() for reader in readers] == expected
    assert engine.load().num_preemptions > 0
    assert sorted(reader.finished[0].usage.cached_tokens for reader in readers)[1:] == [32] * 3

    def some_begun():
        readers = [Reader(engine, request(prompt, NUM_TOKENS)) for prompt in prompts]
        eventually(lambda: any(len(reader.tokens) > 20 for reader in readers))
        return readers

    assert killed_amid(engine, some_begun, "worker", rank=1, resumed=any) == expected
    eventually(engine.idle)
    assert engine.stop() == 0
