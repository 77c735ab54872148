"""Models whose layers have windows, behind the scheduler's core and a worker's runner: the tokens of transformers."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from quire.worker.specs.registry import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from core_engine import LENGTH, Engine

pytestmark = pytest.mark.integration

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = 11
KINDS = {"use_sliding_window": True, "sliding_window": WINDOW, "num_hidden_layers": 5}
MODELS = {
    "every layer": ("MistralForCausalLM", {"sliding_window": WINDOW, "num_hidden_layers": 3}),
    "one of five sees all": (
        "Qwen2ForCausalLM",
        {**KINDS, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING]},
    ),
    "chunks, and one of four sees all": (
        "Llama4ForCausalLM",
        {"attention_chunk_size": WINDOW, "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 1], "head_dim": 16}
        | {"num_local_experts": 3, "interleave_moe_layer_step": 2, "floor_scale": 8, "attn_scale": 0.5},
    ),
    "every other one, with sinks": (
        "GptOssForCausalLM",
        {
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 40,
        },
    ),
    "gemma 4: two shapes of heads, and layers that read another's keys": (
        "Gemma4ForCausalLM",
        {"num_hidden_layers": 7, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL]}
        | {"head_dim": 16, "global_head_dim": 32, "sliding_window": WINDOW, "num_kv_shared_layers": 3}
        | {"hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 320},
    ),
    "gemma 3n: streams, and layers that read another's keys": (
        "Gemma3nForCausalLM",
        {"num_hidden_layers": 5, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL], "head_dim": 16}
        | {"sliding_window": WINDOW, "num_kv_shared_layers": 2, "laurel_rank": 5}
        | {"activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.0]}
        | {"hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 320},
    ),
    "the upper ones": ("Qwen3ForCausalLM", {**KINDS, "max_window_layers": 2, "head_dim": 16}),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tiny_checkpoint, reference):
    """(folder, the continuations that transformers gives, the heads of all its layers, distinct)"""
    architecture, config = MODELS[request.param]
    folder = tiny_checkpoint(architecture, **config)
    heads = {layer.attention.head_dim for layer in read_spec(folder).layers}
    return folder, partial(continued, reference, folder), heads


def continued(reference, folder, prompts, count=12):
    return [tokens[-count:] for tokens, _ in reference(folder, prompts, count)]


@pytest.fixture(scope="module")
def engine(model):
    threads = torch.get_num_threads()
    yield Engine(model[0])
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def some(prompts):
    """Prompts of 1 to 70 tokens, on both sides of a window's and of blocks' edges."""
    return [*prompts[:5], *prompts[8:10], prompts[13], prompts[15]]


@pytest.fixture(scope="module")
def expected(model, some):
    return model[1](some)


@pytest.mark.thorough
@pytest.mark.parametrize(("chunk", "caching"), [(3, False), (5, True)])
def test_chunks_of_any_length_give_the_tokens_of_transformers(chunk, caching, engine, expected, some):
    engine.restart(max_num_batched_tokens=chunk, enable_prefix_caching=caching)
    for number, prompt in enumerate(some):
        engine.submit(number, prompt)
    tokens = engine.settle()
    assert [tokens[number, 0] for number in range(len(some))] == expected


@pytest.mark.sampled(2)
def test_a_prefix_is_found_at_every_length(engine, model, prompts):
    longest = prompts[15]
    asked = [[*longest[:length], 7] for length in range(1, len(longest) + 1, 3)]
    expected = model[1](asked)
    engine.restart()
    engine.submit(1000, longest)
    engine.settle()
    for number, prompt in enumerate(asked):
        engine.submit(number, prompt)
        tokens = engine.settle()
    assert [tokens[number, 0] for number in range(len(asked))] == expected
    size = engine.facts.block_size
    assert [engine.cached[number] for number in range(len(asked))] == [(len(one) - 1) // size * size for one in asked]


@pytest.mark.sampled(2)
def test_outputs_that_share_a_prompt_draw_what_they_draw_in_one_group(engine, model, prompts, monkeypatch):
    monkeypatch.setattr("quire.worker.start.CONTEXT", 1)
    one = Engine(model[0])
    assert len(one.facts.block_sizes) == 1 or len(model[2]) > 1
    drawn = []
    for served, most in ((one, 128), (engine, 128), (engine, 5)):
        served.restart(max_num_batched_tokens=most)
        for number, length in enumerate((1, 11, 12, 13, 24, 40)):
            served.submit(number, prompts[15][:length], n=3, temperature=1.0, max_tokens=30)
        drawn.append(served.settle())
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(drawn[0]) == 18


@pytest.mark.thorough
def test_preempted_outputs_go_on_alike(model, some):
    expected = model[1](some, 24)
    small = Engine(model[0], kv_cache_memory_bytes=(76 if len(model[2]) == 1 else 96) << 10, max_num_batched_tokens=16)
    for caching in (False, True):
        small.restart(max_num_batched_tokens=16, enable_prefix_caching=caching)
        for number, prompt in enumerate(some):
            small.submit(number, prompt, max_tokens=24)
        tokens = small.settle()
        assert [tokens[number, 0] for number in range(len(some))] == expected
        assert small.core.counters.num_preemptions, "nothing was preempted"


def test_a_long_sequence_holds_no_more_than_its_windows(engine, model, prompts):
    engine.restart(max_num_batched_tokens=8)
    engine.submit(1, prompts[15], max_tokens=LENGTH - 70)
    tokens = engine.settle()
    assert tokens[1, 0] == model[1]([prompts[15]], LENGTH - 70)[0]
    windows = engine.facts.windows
    assert set(windows) <= {0, WINDOW}
    assert WINDOW in windows
    for group, (window, size) in enumerate(zip(windows, engine.facts.block_sizes, strict=True)):
        most = max(held[group] for step in engine.held for held in step)
        if window:  # beside the window a chunk, the token before, and what does not fill its block
            assert most <= -(-(window + 1 + 8) // size) + 1
        else:
            assert most == -(-(LENGTH - 1) // size)
    last = [held for step in engine.held[-9:] for held in step]
    assert all(held[group] <= 4 for held in last for group, window in enumerate(windows) if window)
