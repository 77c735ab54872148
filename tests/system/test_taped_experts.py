"""Models of experts under `quire serve` on CPUs, as tapes and call by call: the tokens of transformers."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from parts.clock import GUARD, eventually
from parts.continued import continued
from prometheus_client.parser import text_string_to_metric_families

from quire.proto.api import GenerateRequest

MODELS = {
    "Qwen3MoeForCausalLM": {"num_experts": 21, "num_experts_per_tok": 3, "moe_intermediate_size": 64},
    "OlmoeForCausalLM": {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64},
}
NUM_TOKENS, TAPED = 24, "one tape of"
WAYS = {
    "taped": ("OlmoeForCausalLM", ("--num-threads=1",)),
    "taped, two threads": ("Qwen3MoeForCausalLM", ("--num-threads=2",)),
    "taped on two ranks": ("OlmoeForCausalLM", ("--num-threads=1", "--tensor-parallel-size=2")),
    "dealt to two ranks": (
        "Qwen3MoeForCausalLM",
        ("--num-threads=1", "--tensor-parallel-size=2", "--enable-expert-parallel"),
    ),
    "call by call": ("Qwen3MoeForCausalLM", ("--enforce-eager",)),
}
"""A model and flags: each way once, and both models as tapes of one rank and of two."""


def expected(folder):
    """Prompts, and what transformers adds to each."""
    lengths = (1, 5, 17, 40)
    prompts = [torch.randint(1, 320, (one,), generator=torch.Generator().manual_seed(one)).tolist() for one in lengths]
    return prompts, continued(folder, prompts, NUM_TOKENS)


QUICK = {"taped, two threads", "dealt to two ranks"}


@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.thorough) for way in WAYS])
def test_experts_give_the_tokens_of_transformers_through_real_processes(way, serve, tiny_checkpoint):
    architecture, asked_for = WAYS[way]
    traits = MODELS[architecture]
    folder = tiny_checkpoint(architecture, hidden_size=64, **traits)
    flags = ("--dtype=float32", "--max-num-batched-tokens=24", "--max-num-seqs=4", "--max-model-len=96")
    engine = serve(str(folder), *flags, *asked_for)
    assert (TAPED in engine.log) == (way != "call by call")

    def made(prompt):
        asked = GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (output,) = engine.client.generate(asked).outputs
        return list(output.token_ids)

    prompts, tokens = expected(folder)
    config = json.loads((folder / "config.json").read_text())
    num_run = sum(len(prompt) + NUM_TOKENS - 1 for prompt in prompts)  # nothing follows the last token
    num_sent = num_run * config["num_experts_per_tok"] * config["num_hidden_layers"]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(made, prompts)) == tokens
    eventually(lambda: sum(sent_to_experts(engine).values()) == num_sent)
    assert len(sent_to_experts(engine)) == traits["num_experts"]
    assert engine.stop() == 0


def sent_to_experts(engine):
    """Expert -> the tokens it was sent, as the metrics page says it."""
    page = urllib.request.urlopen(f"http://{engine.http}/metrics", timeout=GUARD).read().decode()
    families = text_string_to_metric_families(page)
    samples = (sample for one in families if one.name == "quire_expert_tokens" for sample in one.samples)
    return {sample.labels["expert"]: sample.value for sample in samples}
