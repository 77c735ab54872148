"""Whole engines on random weights: with graphs as without, whatever runs beside, within the memory they may use."""

from pathlib import Path
from typing import Any

import models
import numpy as np
import torch
from engine import engine
from report import Report

LAYERS = 4
"""Of the 8B models' shapes, so that the engines start in seconds; the kernels are those of all layers."""
START_SECONDS = 150.0
RUN_SECONDS = 60.0
UTILIZATION = 0.5


def check_engine(report: Report, folder: Path, device: str) -> None:
    shapes = {"small": models.SMALL}
    if device == "cuda":
        shapes = {"llama-8b": models.LLAMA_8B, "qwen3-8b": models.QWEN3_8B}
    for name, config in shapes.items():
        report.go_on()
        model = models.write(folder / name, config, num_hidden_layers=min(LAYERS, config["num_hidden_layers"]))
        _graphs_and_eager(report, name, model, config, device)


def _options(device: str) -> dict[str, Any]:
    options: dict[str, Any] = {"device": device, "max_num_seqs": 16, "max_model_len": 2048, "seed": 1,
                               "enable_prefix_caching": False}  # fmt: skip
    if device == "cuda":
        return {**options, "gpu_memory_utilization": UTILIZATION}
    return {**options, "kv_cache_memory_bytes": 64 << 20, "num_threads": 1}


def _graphs_and_eager(report: Report, name: str, model: Path, config: dict[str, Any], device: str) -> None:
    random = np.random.default_rng(7)
    # lengths of whole buckets, so that a graph runs what an eager step runs; the last is beyond the graphs
    prompts = [random.integers(0, config["vocab_size"], length).tolist() for length in (16, 128, 512, 1100)]
    count = 40 if device == "cuda" else 6
    drawn: dict[bool, list[list[int]]] = {}
    for eager in (True, False):
        with engine(model, START_SECONDS, enforce_eager=eager, **_options(device)) as running:
            how = "eager" if eager else "graphs"
            drawn[eager] = []
            for prompt in prompts:  # one at a time: nothing beside it
                tokens, _, complete = running.run([prompt], count, RUN_SECONDS)
                report.holds(f"{name}: every token came, {how}", complete and len(tokens[0]) == count)
                drawn[eager] += tokens
            again = running.run(prompts[1:2], count, RUN_SECONDS)[0]
            report.equal(f"{name}: the same again, {how}", *_pair(again, drawn[eager][1:2], count))
            together, _, complete = running.run(prompts * 3, count, RUN_SECONDS)
            lengths = {len(tokens) for tokens in together}
            report.holds(f"{name}: twelve at once, every token came, {how}", complete and lengths == {count})
            # beside others the sums of 16-bit numbers are rounded otherwise, so later tokens may part ways
            first = [tokens[0] for tokens in together]
            other = sum(one != drawn[eager][index % 4][0] for index, one in enumerate(first))
            report.number(f"{name}: other first tokens at twelve, {how}", other / len(first), 0.25)
            if device == "cuda":
                free, total = torch.cuda.mem_get_info()
                taken = (total - free) / total
                report.number(f"{name}: share of memory over what was allowed, {how}", taken - UTILIZATION, 0.03)
                report.holds(f"{name}: the profile left memory for the cache", running.facts.num_blocks * 16 > 100_000)
    report.equal(f"{name}: graphs draw what eager steps draw", *_pair(drawn[False], drawn[True], count))


def _pair(got: list[list[int]], wanted: list[list[int]], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.tensor([tokens[:count] for tokens in one]) for one in (got, wanted))
