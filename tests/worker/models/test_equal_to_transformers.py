"""Every architecture and rope type, token for token against transformers (float32, greedy)."""

import pytest

pytestmark = pytest.mark.integration

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MODELS = {
    "llama 2: as many key-value heads as heads": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama 3: grouped queries, llama3 rope": ("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "llama tied, every bias": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "six heads, two key-value heads": (
        "LlamaForCausalLM",
        {"num_attention_heads": 6, "hidden_size": 96, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    "four heads, one key-value head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "heads wider than hidden / heads": ("LlamaForCausalLM", {"head_dim": 32}),
    "linear rope": ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "dynamic rope, past the original length": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
            "max_position_embeddings": 72,
        },
    ),
    "yarn": ("LlamaForCausalLM", {"rope_parameters": YARN}),
    "yarn with mscale and real borders": (
        "LlamaForCausalLM",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3, "truncate": False, "beta_fast": 16}},
    ),
    "yarn with a stated attention factor": ("LlamaForCausalLM", {"rope_parameters": {**YARN, "attention_factor": 0.8}}),
    "mistral, window shorter than the sequence": ("MistralForCausalLM", {"sliding_window": 21}),
    "mistral without a window": ("MistralForCausalLM", {"sliding_window": None}),
    "ministral 3, queries that grow with their position": (
        "Ministral3ForCausalLM",
        {"rope_parameters": {**YARN, "original_max_position_embeddings": 24, "llama_4_scaling_beta": 0.7}},
    ),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2 tied, windows on the upper layers": (
        "Qwen2ForCausalLM",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "num_hidden_layers": 3,
        },
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3 tied, with biases": (
        "Qwen3ForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 16},
    ),
}


def assert_same(rows, expected):
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_mixed_lengths_gives_the_tokens_of_transformers(
    name, tiny_checkpoint, load, greedy, reference, prompts
):
    architecture, config = MODELS[name]
    folder = tiny_checkpoint(architecture, **config)
    expected = reference(folder, prompts, 64)
    assert len({tuple(tokens[-64:]) for tokens, _ in expected}) == len(prompts)  # no model that always says the same
    assert_same(greedy(load(folder)).generate(prompts, 64), expected)


@pytest.mark.parametrize("window", [None, 21])
def test_whole_prompts_chunks_and_cached_prefixes_agree_with_transformers(
    window, tiny_checkpoint, load, greedy, reference, prompts
):
    folder = tiny_checkpoint("MistralForCausalLM", sliding_window=window)
    decoder = load(folder)
    expected = reference(folder, prompts, 64)
    assert_same(greedy(decoder).generate(prompts, 64), expected)
    assert_same(greedy(decoder).generate(prompts, 64, chunk=5), expected)


def test_a_sequence_that_starts_on_anothers_cached_blocks_goes_on_alike(
    tiny_checkpoint, load, greedy, reference, prompts
):
    folder = tiny_checkpoint("Qwen3ForCausalLM", head_dim=32)
    engine = greedy(load(folder))
    prompt = prompts[-1]
    (first,) = engine.generate([prompt], 64)
    shared = 40  # five blocks of eight; the sixth is computed anew, from its middle on in chunks of three
    second = type(first)(list(prompt), shared, first.blocks[: shared // 8])
    while len(second.tokens) < len(first.tokens):
        engine.step([(second, min(3, len(second.tokens) - second.num_computed))])
    assert second.blocks[:5] == first.blocks[:5]
    assert second.blocks[5] != first.blocks[5]
    assert_same([second], reference(folder, [prompt], 64))
