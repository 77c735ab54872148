"""Models of experts under `quire serve` on CPUs, as tapes and call by call: the tokens of transformers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.proto.api import GenerateRequest

MODELS = {
    "Qwen3MoeForCausalLM": {"num_experts": 21, "num_experts_per_tok": 3, "moe_intermediate_size": 64},
    "OlmoeForCausalLM": {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64},
}
NUM_TOKENS, TAPED = 24, "one tape of"
WAYS = {
    "taped": ("--num-threads=1",),
    "taped, two threads": ("--num-threads=2",),
    "taped on two ranks": ("--num-threads=1", "--tensor-parallel-size=2"),
    "dealt to two ranks": ("--num-threads=1", "--tensor-parallel-size=2", "--enable-expert-parallel"),
    "call by call": ("--enforce-eager",),
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tiny_checkpoint):
    return tiny_checkpoint(request.param, hidden_size=64, **MODELS[request.param])


@pytest.fixture(scope="module")
def expected(folder):
    """Prompts, and what transformers makes of each."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    found = []
    for length in (1, 5, 17, 40):
        prompt = torch.randint(1, 320, (1, length), generator=torch.Generator().manual_seed(length))
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=0
        )
        found.append((prompt[0].tolist(), made[0, length:].tolist()))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_experts_give_the_tokens_of_transformers_through_real_processes(way, serve, folder, expected):
    flags = ("--dtype=float32", "--max-num-batched-tokens=24", "--max-num-seqs=4", "--max-model-len=96")
    engine = serve(str(folder), *flags, *WAYS[way])
    assert (TAPED in engine.log) == (way != "call by call")

    def made(prompt):
        asked = GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        (output,) = engine.client.generate(asked).outputs
        return list(output.token_ids)

    prompts, tokens = zip(*expected, strict=True)
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(made, prompts)) == list(tokens)
    assert engine.stop() == 0
