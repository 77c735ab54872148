"""Whole engines on random weights: with graphs as without, whatever runs beside, within the memory they may use."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import chip
import engine as engines
import models
import numpy as np
import torch
from report import Case, Report

LAYERS = 4
"""Of the 8B models' shapes, so that the engines start in seconds; the kernels are those of all layers."""
START_SECONDS = 80.0
RUN_SECONDS = 30.0
UTILIZATION = 0.5
BLOCK_SIZES = {"llama-8b": 16, "qwen3-8b": 64}
"""The smallest that the specialized body of prefill takes, once it is trusted, for one of them."""

Drawn = dict[bool, list[list[int]]]
"""Eager or not -> tokens of each prompt."""


def tiny(report: Report, folder: Path, device: str, few: bool) -> Iterator[Case]:
    """A small model, as whole processes: the first thing to know."""
    dtype = "bfloat16" if device == "cuda" else "float32"
    model = models.write(folder / "tiny", models.SMALL, torch_dtype=dtype)
    yield from _cases(report, "tiny", model, models.SMALL, _options(device), 6)


def engine(report: Report, folder: Path, device: str, few: bool) -> Iterator[Case]:
    """The 8B models' shapes; on a CPU the small one's. `few`: of layers and of tokens."""
    shapes = {"llama-8b": models.LLAMA_8B, "qwen3-8b": models.QWEN3_8B} if device == "cuda" else {"small": models.SMALL}
    for name, config in shapes.items():
        model = models.write(folder / name, config, num_hidden_layers=2 if few else LAYERS)
        options = _options(device)
        if device == "cuda":
            del options["kv_cache_memory_bytes"]
            options |= {"gpu_memory_utilization": UTILIZATION, "block_size": BLOCK_SIZES[name]}
        yield from _cases(report, name, model, config, options, 6 if few else 40)


def _options(device: str) -> dict[str, Any]:
    options: dict[str, Any] = {"device": device, "max_num_seqs": 16, "max_model_len": 2048, "seed": 1,
                               "enable_prefix_caching": False, "kv_cache_memory_bytes": 64 << 20}  # fmt: skip
    return options if device == "cuda" else {**options, "num_threads": 1}


def _cases(
    report: Report, name: str, model: Path, config: dict[str, Any], options: dict[str, Any], count: int
) -> Iterator[Case]:
    drawn: Drawn = {}
    for eager in (True, False):
        run = partial(_draw, report, name, model, config, {**options, "enforce_eager": eager}, count, drawn)
        yield Case(f"{name}, {'eager' if eager else 'graphs'}", run)
    yield Case(f"{name}, graphs draw what eager steps draw", partial(_compare, report, name, drawn, count))


def _draw(
    report: Report, name: str, model: Path, config: dict[str, Any], options: dict[str, Any], count: int, drawn: Drawn
) -> None:
    random = np.random.default_rng(7)
    # lengths of whole buckets, so that a graph runs what an eager step runs; the last is beyond the graphs
    prompts = [random.integers(0, config["vocab_size"], length).tolist() for length in (16, 128, 512, 1100)]
    how = "eager" if options["enforce_eager"] else "graphs"
    seconds = chip.patience() * RUN_SECONDS
    with engines.engine(model, START_SECONDS, **options) as running:
        found: list[list[int]] = []
        for prompt in prompts:  # one at a time: nothing beside it
            tokens, _, complete = running.run([prompt], count, seconds)
            report.holds(f"{name}: every token came, {how}", complete and len(tokens[0]) == count)
            found += tokens
        again = running.run(prompts[1:2], count, seconds)[0]
        report.equal(f"{name}: the same again, {how}", *_pair(again, found[1:2], count))
        together, _, complete = running.run(prompts * 3, count, seconds)
        lengths = {len(tokens) for tokens in together}
        report.holds(f"{name}: twelve at once, every token came, {how}", complete and lengths == {count})
        # beside others the sums of 16-bit numbers are rounded otherwise, so later tokens may part ways
        other = sum(tokens[0] != found[index % 4][0] for index, tokens in enumerate(together))
        report.number(f"{name}: other first tokens at twelve, {how}", other / len(together), 0.25)
        if "gpu_memory_utilization" in options:
            free, total = torch.cuda.mem_get_info()
            taken = (total - free) / total
            report.number(f"{name}: share of memory over what was allowed, {how}", taken - UTILIZATION, 0.03)
            held = running.facts.num_blocks * options["block_size"]
            report.holds(f"{name}: the profile left memory for the cache", held > 100_000)
        report.figure(f"{name}, {how}: ready_seconds", running.ready_seconds)
    drawn[options["enforce_eager"]] = found


def _compare(report: Report, name: str, drawn: Drawn, count: int) -> None:
    if missing := {True, False} - drawn.keys():
        raise RuntimeError(f"{name}: no tokens of {['the graphs', 'eager steps'][missing.pop()]} to compare")
    report.equal(f"{name}: graphs draw what eager steps draw", *_pair(drawn[False], drawn[True], count))


def _pair(got: list[list[int]], wanted: list[list[int]], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.tensor([tokens[:count] for tokens in one]) for one in (got, wanted))
