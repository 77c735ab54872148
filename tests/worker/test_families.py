"""Real workers with a tiny model of each family: the tokens of transformers, by a tape where one is promised."""

from pathlib import Path

import numpy as np
import pytest
import torch

from quire.worker.config import WorkerConfig
from quire.worker.quant.plan import NO_PLAN
from quire.worker.specs.registry import read_spec
from quire.worker.specs.tape import untaped

pytestmark = pytest.mark.integration

PROMPT = list(range(40, 61))
SHAPE = {"head_dim": 16, "num_hidden_layers": 4}
FAMILIES = {
    "GemmaForCausalLM": {},
    "Gemma2ForCausalLM": {"sliding_window": 9, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0},
    "Gemma3ForCausalLM": {"sliding_window": 9, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
    "Gemma3nForCausalLM": {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2}
    | {"num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0], "laurel_rank": 5}
    | {"hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 320},
    "Gemma4ForCausalLM": {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2}
    | {"global_head_dim": 32, "num_kv_shared_layers": 2}
    | {"hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 320},
    "Gemma4UnifiedForCausalLM": {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2}
    | {"global_head_dim": 32, "num_global_key_value_heads": 2, "attention_k_eq_v": True},
    "Phi3ForCausalLM": {"sliding_window": 9},
    "Glm4ForCausalLM": {},
    "Olmo2ForCausalLM": {},
    "Olmo3ForCausalLM": {"sliding_window": 9},
    "Exaone4ForCausalLM": {"sliding_window": 9},
    "CohereForCausalLM": {},
    "Cohere2ForCausalLM": {"sliding_window": 9},
    "SmolLM3ForCausalLM": {"no_rope_layer_interval": 2},
    "GraniteForCausalLM": {"embedding_multiplier": 3.0, "residual_multiplier": 0.25, "attention_multiplier": 0.2},
    "SeedOssForCausalLM": {},
    "Ernie4_5ForCausalLM": {},
    "GptOssForCausalLM": {
        "sliding_window": 9,
        "num_local_experts": 7,
        "num_experts_per_tok": 3,
        "intermediate_size": 48,
        "attention_bias": False,
    },
    "Glm4MoeForCausalLM": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "MiniMaxM2ForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "Ernie4_5_MoeForCausalLM": {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24},
    "Dots1ForCausalLM": {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    | {"n_shared_experts": 1, "sliding_window": 9, "max_window_layers": 2, "first_k_dense_replace": 1},
    "Llama4ForCausalLM": {"num_local_experts": 3, "attention_chunk_size": 8, "floor_scale": 8, "attn_scale": 0.5}
    | {"no_rope_layer_interval": 3, "interleave_moe_layer_step": 2},
}
NUM_TOKENS = 7


DEALT = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16}


def reference(folder: Path) -> list[int]:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    made = network.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return made[0, len(PROMPT) :].tolist()


def drawn_by(workers, scribe) -> list[int]:
    ready, *_ = workers.join()
    writer = scribe(8, num_groups=len(ready.facts.block_sizes))
    writer.admit(0, PROMPT)
    drawn = []
    for rows in ([(0, 10)], [(0, 11)], *([(0, 1)] for _ in range(NUM_TOKENS - 1))):
        drawn += np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist()
    return drawn


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_worker_draws_the_tokens_of_transformers(architecture, group, scribe, tiny_checkpoint):
    folder = tiny_checkpoint(architecture, **SHAPE, **FAMILIES[architecture])
    workers = group(model=str(folder), dtype="float32")
    assert drawn_by(workers, scribe) == reference(folder)
    reason = untaped(WorkerConfig(model=str(folder)), read_spec(folder), "float32", NO_PLAN)
    assert ("one tape of" in workers.log.read_text()) == (not reason)
    assert workers.stop() == [0]


def test_workers_that_are_dealt_experts_draw_the_tokens_of_transformers(group, scribe, tiny_checkpoint):
    folder = tiny_checkpoint("MixtralForCausalLM", **DEALT)
    workers = group(2, model=str(folder), dtype="float32", tensor_parallel_size=2, enable_expert_parallel=True)
    assert drawn_by(workers, scribe) == reference(folder)
    assert workers.stop() == [0, 0]
