"""Experts dealt to the ranks of a real engine, disturbed: preempted, on cached prefixes, a rank killed amid answers."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from test_faults import Reader, request

NUM_TOKENS, NUM_OF_FIRST = 150, 16
"""Tokens of an output, and those of them that are compared with transformers."""
SEVEN = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


def test_dealt_experts_go_on_through_preemptions_cached_prefixes_and_the_death_of_a_rank(
    serve, tiny_checkpoint, eventually
):
    """Seven experts on two ranks, and a cache that holds two of the four outputs to their ends."""
    folder = tiny_checkpoint("Qwen2MoeForCausalLM", **SEVEN)
    flags = ("--tensor-parallel-size=2", "--enable-expert-parallel", "--max-num-batched-tokens=24", "--max-num-seqs=4")
    engine = serve(str(folder), *flags, "--kv-cache-memory-bytes=96KiB")
    common = np.random.default_rng(0).integers(3, 320, 40).tolist()
    prompts = [[*common, *range(10 + number, 15 + number)] for number in range(4)]

    def alone(prompt):
        return Reader(engine, request(prompt, NUM_TOKENS, cache_salt=f"alone {prompt[-1]}")).result()

    expected = [alone(prompt) for prompt in prompts]
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for prompt, tokens in zip(prompts, expected, strict=True):
        out = network.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_OF_FIRST, min_new_tokens=NUM_OF_FIRST, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        assert tokens[:NUM_OF_FIRST] == out[0, len(prompt) :].tolist()
    assert engine.client.load().num_preemptions == 0
    readers = [Reader(engine, request(prompt, NUM_TOKENS)) for prompt in prompts]
    assert [reader.result() for reader in readers] == expected
    assert engine.client.load().num_preemptions > 0
    assert sorted(reader.finished[0].usage.cached_tokens for reader in readers)[1:] == [32] * 3
    readers = [Reader(engine, request(prompt, NUM_TOKENS)) for prompt in prompts]
    eventually(lambda: any(len(reader.tokens) > 20 for reader in readers), 60)
    os.kill(engine.pids("worker")[1], signal.SIGKILL)
    assert [reader.result() for reader in readers] == expected
    assert any(reader.was_resumed for reader in readers)
    eventually(engine.idle, 20)
    assert engine.stop() == 0
