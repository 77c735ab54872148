"""Every architecture that generates, under the conditions of serving: the tokens of transformers under all of them.

Each model runs prompts whole and in chunks by hand, for their logprobs, and one condition behind a scheduler's core,
such that the models of the list together see every two values of different kinds. `make test-all` adds more conditions,
long texts, and a worker process of each architecture; `make test-models` takes the product of conditions, on one rank,
without a tape, and on two, and writes it down.
"""

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import conditions
import expert_models
import packed_experts
from conditions import EVERY, NUM_TOKENS, Work, pairwise
from dense_models import MODELS as DENSE_MODELS

from quire.worker.config import WorkerConfig
from quire.worker.device.parallel import Groups
from quire.worker.quant.plan import NO_PLAN
from quire.worker.specs.architectures import ARCHITECTURES
from quire.worker.specs.registry import read_spec
from quire.worker.specs.tape import untaped

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).with_name("conditions.py")
RESULTS = Path(__file__).with_name("conditions.jsonl")
ROUTED = {**expert_models.MODELS, **packed_experts.MODELS}
MODELS = {**DENSE_MODELS, **ROUTED}
ENGINES = {
    "one rank": (1, {}),
    "one rank, no tape": (1, {"enforce_eager": True, "invariants": False}),
    "two ranks": (2, {"invariants": False}),
    "two ranks, experts dealt": (2, {"enable_expert_parallel": True, "invariants": False}),
}
"""The ranks of each, and its settings. The plans are the same for all: one checks the invariants of the scheduler."""
MORE, STRIDE = 2, 3
"""Conditions of each model that `make test-all` adds to one, and between the first of a model and of the next."""


@pytest.fixture(scope="module")
def work(prompts):
    """Prompts of 1 to 70 tokens, on both sides of blocks' edges; and beginnings of the longest."""
    longest = prompts[15]
    beginnings = [[*longest[:length], 7] for length in range(1, len(longest) + 1, 5)]
    return longest, {"mixed": [prompts[place] for place in (0, 4, 9, 13, 15)], "beginnings": beginnings}


def folders(name, tiny_checkpoint, target):
    """The checkpoint that is served, and the one that transformers reads: the weights that a quantized one means."""
    architecture, config, *pack = MODELS[name]
    folder = tiny_checkpoint(architecture, **config)
    return pack[0](folder, target) if pack else (folder, folder)


def with_expected(work, reference, folder):
    """The work, and what transformers gives for the prompts of mixed lengths, with its logprobs."""
    longest, prompts = work
    rows = reference(folder, [*prompts["mixed"], *prompts["beginnings"]], NUM_TOKENS)
    tokens = [row[-NUM_TOKENS:] for row, _ in rows]
    count = len(prompts["mixed"])
    return Work(longest, prompts, {"mixed": tokens[:count], "beginnings": tokens[count:]}), rows[:count]


def assert_same(rows, expected):
    for row, (tokens, logprobs) in zip(rows, expected, strict=True):
        assert row.tokens == tokens
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)


def check_tape(log, folder):
    """The log tells of a tape unless there is a reason against one, which is known before the start."""
    reason = untaped(WorkerConfig(model=str(folder)), read_spec(folder), "float32", NO_PLAN)
    assert ("one tape of" in log) == (not reason)


def test_every_architecture_that_generates_is_among_them():
    generating = {name for name, row in ARCHITECTURES.items() if name.endswith("ForCausalLM") and not row.text_alone}
    assert generating == {architecture for architecture, *_ in MODELS.values()}


def condition_of(name, place=0):
    chosen = pairwise()
    return chosen[(STRIDE * list(MODELS).index(name) + place) % len(chosen)]


def test_the_models_together_see_every_condition_that_pairs_need():
    assert {condition_of(name) for name in MODELS} == set(pairwise())


@pytest.mark.parametrize("name", MODELS)
def test_prompts_whole_in_chunks_and_under_a_condition_give_the_tokens_of_transformers(
    name, work, tiny_checkpoint, load, greedy, reference, tmp_path, caplog
):
    folder, meant = folders(name, tiny_checkpoint, tmp_path)
    served, expected = with_expected(work, reference, meant)
    assert len({tuple(tokens) for tokens in served.expected["mixed"]}) > 1  # no model that always says the same
    is_plain = folder == meant
    if is_plain:
        decoder, prompts = load(folder), served.prompts["mixed"]
        for chunk in (1 << 30, 3):
            assert_same(greedy(decoder).generate(prompts, NUM_TOKENS, chunk=chunk), expected)
    with caplog.at_level(logging.INFO):
        assert conditions.run(served, [condition_of(name)], str(folder), Groups) == []
    if is_plain:
        check_tape(caplog.text, folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_more_conditions_give_the_tokens_of_transformers(name, work, tiny_checkpoint, reference, tmp_path):
    folder, meant = folders(name, tiny_checkpoint, tmp_path)
    more = [condition_of(name, place) for place in range(1, 1 + MORE)]
    assert conditions.run(with_expected(work, reference, meant)[0], more, str(folder), Groups) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", DENSE_MODELS)
def test_long_texts_behind_prompts_of_all_lengths_are_those_of_transformers(
    name, tiny_checkpoint, load, greedy, reference, prompts
):
    architecture, config = MODELS[name]
    folder = tiny_checkpoint(architecture, **config)
    expected, decoder = reference(folder, prompts, 64), load(folder)
    assert len({tuple(tokens[-64:]) for tokens, _ in expected}) == len(prompts)
    assert_same(greedy(decoder).generate(prompts, 64), expected)
    assert_same(greedy(decoder).generate(prompts[-6:], 64, chunk=3), expected[-6:])


OF_EACH = {MODELS[name][0]: name for name in reversed([*DENSE_MODELS, *expert_models.MODELS])}
"""The first model of each architecture."""
DEALT = "MixtralForCausalLM"


def drawn_by(workers, scribe, prompt):
    ready, *_ = workers.join()
    writer = scribe(8, num_groups=len(ready.facts.block_sizes))
    writer.admit(0, prompt)
    drawn = []
    for rows in ([(0, 10)], [(0, len(prompt) - 10)], *([(0, 1)] for _ in range(NUM_TOKENS - 1))):
        drawn += np.frombuffer(workers.step(writer.plan(rows)[1]).token_ids, dtype=np.int32).tolist()
    return drawn


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", OF_EACH)
def test_a_worker_process_draws_the_tokens_of_transformers(
    architecture, group, scribe, tiny_checkpoint, reference, prompts
):
    folder, prompt = tiny_checkpoint(architecture, **MODELS[OF_EACH[architecture]][1]), prompts[9]
    workers = group(model=str(folder), dtype="float32")
    ((tokens, _),) = reference(folder, [prompt], NUM_TOKENS)
    assert drawn_by(workers, scribe, prompt) == tokens[-NUM_TOKENS:]
    check_tape(workers.log.read_text(), folder)
    assert workers.stop() == [0]


def test_workers_that_are_dealt_experts_draw_the_tokens_of_transformers(
    group, scribe, tiny_checkpoint, reference, prompts
):
    folder, prompt = tiny_checkpoint(DEALT, **MODELS[OF_EACH[DEALT]][1]), prompts[9]
    workers = group(2, model=str(folder), dtype="float32", tensor_parallel_size=2, enable_expert_parallel=True)
    ((tokens, _),) = reference(folder, [prompt], NUM_TOKENS)
    assert drawn_by(workers, scribe, prompt) == tokens[-NUM_TOKENS:]
    assert workers.stop() == [0, 0]


@pytest.mark.product
@pytest.mark.parametrize("name", MODELS)
def test_every_condition_gives_the_tokens_of_transformers(name, work, tiny_checkpoint, reference, tmp_path):
    folder, meant = folders(name, tiny_checkpoint, tmp_path)
    asked = {"work": asdict(with_expected(work, reference, meant)[0]), "folder": str(folder)}
    engines = [engine for engine in ENGINES if "experts" not in engine or name in ROUTED]
    alone = [engine for engine in engines if ENGINES[engine][0] == 1]
    run = partial(on_ranks, asked, tmp_path)
    with ThreadPoolExecutor(len(alone)) as at_once:
        failed = dict(zip(alone, at_once.map(run, alone), strict=True))
    failed |= {engine: run(engine) for engine in engines if engine not in alone}
    write_down(name, {engine: len(EVERY) - len(found) for engine, found in failed.items()})
    assert not any(failed.values()), failed


def on_ranks(asked, folder, engine):
    """What failed of all conditions on any of the engine's ranks."""
    size, fields = ENGINES[engine]
    text = json.dumps({**asked, "fields": fields, "conditions": [asdict(one) for one in EVERY]})
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), str(size), str(folder / engine)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for one in ranks:
            one.stdin.write(text)
            one.stdin.close()
        outputs = [one.stdout.read() for one in ranks]
        assert [one.wait() for one in ranks] == [0] * size
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    return [failure for output in outputs for failure in json.loads(output)]


def write_down(name, passed):
    """The model's row of the results, in the order of the list."""
    rows = {row["model"]: row for row in map(json.loads, RESULTS.read_text().splitlines())} if RESULTS.exists() else {}
    rows[name] = {"model": name, "architecture": MODELS[name][0], "conditions": len(EVERY), "passed": passed}
    rows[name]["torch"] = torch.__version__
    RESULTS.write_text("".join(f"{json.dumps(rows[one])}\n" for one in MODELS if one in rows))
