"""Every architecture and rope type, token for token against transformers (float32, greedy)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

from dense_models import MODELS

pytestmark = pytest.mark.integration


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
    decoder = load(folder)
    assert_same(greedy(decoder).generate(prompts, 64), expected)
    assert_same(greedy(decoder).generate(prompts[-6:], 64, chunk=3), expected[-6:])


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
