"""Modules of the transformers library under `quire serve`: the library's own tokens, whatever dies."""

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from parts.clock import GUARD, eventually
from parts.continued import continued
from parts.engine import LIBRARY
from tiny_tokenizer import write_tokenizer

from quire.proto.api import Delta, GenerateRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker/models"))  # collected in importlib mode, yet they share

from library_models import MODELS, write

ENGINES = {
    "GPT2LMHeadModel": ("--block-size=8", "--max-num-batched-tokens=64"),
    "Starcoder2ForCausalLM": ("--tensor-parallel-size=2", "--frontends=2"),
}
PROMPTS = [[5, 6, 7], [8, 9], list(range(10, 50)), [3]]
NUM_TOKENS = 120
CONTEXT = {"GPT2LMHeadModel": "n_positions", "Starcoder2ForCausalLM": "max_position_embeddings"}
"""Fields for its length; streams must still run when a worker dies."""


@pytest.fixture(
    scope="module",
    params=["GPT2LMHeadModel", pytest.param("Starcoder2ForCausalLM", marks=pytest.mark.thorough)],
)
def served(request, serve, tmp_path_factory):
    """(engine, what the library makes of each prompt)"""
    folder = tmp_path_factory.mktemp("library")
    write(folder, request.param, {**MODELS[request.param], CONTEXT[request.param]: 512})
    write_tokenizer(folder, ["<|endoftext|>"], "{{ messages[0]['content'] }}", ["pages of a cache"], 320)
    expected = continued(folder, PROMPTS, NUM_TOKENS)
    engine = serve(str(folder), "--max-num-seqs=4", *ENGINES[request.param], imports=LIBRARY)
    assert "modules of transformers" in engine.log
    return engine, expected


def asked(prompt):
    return GenerateRequest(input=prompt, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


def test_tokens_are_those_of_the_library_a_second_time_out_of_the_cache(served):
    engine, expected = served

    def made(prompt):
        (output,) = engine.client.generate(asked(prompt)).outputs
        return list(output.token_ids)

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for _ in range(2):
            assert list(pool.map(made, PROMPTS)) == expected


def test_streams_survive_the_kill_of_a_worker(served):
    engine, expected = served
    found: list[list[int]] = [[] for _ in PROMPTS]

    def read(tokens, prompt):
        for event in engine.client.stream(asked(prompt)):
            if isinstance(event, Delta):
                tokens += event.token_ids

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        readers = [pool.submit(read, *pair) for pair in zip(found, PROMPTS, strict=True)]
        eventually(lambda: all(len(tokens) > 5 for tokens in found))
        seen = len(engine.lines)
        os.kill(engine.pids("worker")[-1], signal.SIGKILL)
        for reader in readers:
            reader.result(GUARD)
    assert found == expected
    engine.wait_for_line("ready again", after=seen)
    eventually(engine.idle)


def test_it_stops_as_it_should(served):
    assert served[0].stop(drains=True) == 0
