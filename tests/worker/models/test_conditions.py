"""Every architecture that generates, under the conditions of serving: the tokens of transformers under all of them.

`make test` takes a few conditions of each model, such that the models of the list together see every two values of
different kinds; `make test-models` takes the product, on one rank, without a tape, and on two, and writes it down.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # collected in importlib mode, yet they share modules

import conditions
import expert_models
import packed_experts
from conditions import EVERY, NUM_TOKENS, Work, pairwise
from dense_models import MODELS as DENSE_MODELS

from quire.worker.device.parallel import Groups
from quire.worker.specs.architectures import ARCHITECTURES

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
A_FEW, STRIDE = 2, 3
"""Conditions of each model in `make test`, and between the first of a model and of the next."""


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
    longest, prompts = work
    rows = reference(folder, [*prompts["mixed"], *prompts["beginnings"]], NUM_TOKENS)
    tokens = [row[-NUM_TOKENS:] for row, _ in rows]
    count = len(prompts["mixed"])
    return Work(longest, prompts, {"mixed": tokens[:count], "beginnings": tokens[count:]})


def test_every_architecture_that_generates_is_among_them():
    generating = {name for name, row in ARCHITECTURES.items() if name.endswith("ForCausalLM") and not row.text_alone}
    assert generating == {architecture for architecture, *_ in MODELS.values()}


def few(name):
    chosen, first = pairwise(), STRIDE * list(MODELS).index(name)
    return [chosen[(first + place) % len(chosen)] for place in range(A_FEW)]


def test_the_models_together_see_every_condition_that_pairs_need():
    assert {one for name in MODELS for one in few(name)} == set(pairwise())


@pytest.mark.parametrize("name", MODELS)
def test_a_few_conditions_give_the_tokens_of_transformers(name, work, tiny_checkpoint, reference, tmp_path):
    folder, meant = folders(name, tiny_checkpoint, tmp_path)
    assert conditions.run(with_expected(work, reference, meant), few(name), str(folder), Groups) == []


@pytest.mark.product
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MODELS)
def test_every_condition_gives_the_tokens_of_transformers(name, work, tiny_checkpoint, reference, tmp_path):
    folder, meant = folders(name, tiny_checkpoint, tmp_path)
    asked = {"work": asdict(with_expected(work, reference, meant)), "folder": str(folder)}
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
