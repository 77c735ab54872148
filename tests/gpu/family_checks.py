"""Whole models of every family on the device: the tokens of transformers, graphs, and the references of all operations
on the host."""

import gc
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import families as lists
import torch
from form_checks import MANY, ROWS, Both, check_graphs, of_prompt, references
from plans import logprobs, tokens
from report import Case, Report
from shared import Shared, leaving
from steps import GREEDY, hand_of, prompt, runner_of

from quire.worker.device.device import Device
from quire.worker.step.runner import Runner

LENGTHS = (3, 33, 70)
"""Of prompts: within a window, behind its end, and behind borders of chunks."""
CHUNKS = (29, 1, 40)
"""In which the longest comes again, beside decoding rows."""
STEPS = 8
WIDTH = 1 + GREEDY.logprobs
"""Numbers of a row in one step."""
EXACT = 1e-3
"""Of logprobs in float32."""
NEAR = 0.1
"""Of the mean difference of a token's logprob in bfloat16."""
CODED = 0.2
"""The same where activations are rounded to codes, and other experts chosen for it."""

Rows = list[tuple[list[int], list[float]]]
"""Of each sequence: tokens that were drawn, and their logprobs."""


def families(
    report: Report, device: Device, folder: Path, small: bool, few: bool, compiles: bool = False
) -> Iterator[Case]:
    """`compiles`: starts alone, which run every kernel; nothing would be compared."""
    return _all(report, device, folder, small, compiles, lists.dense(few))


def experts(
    report: Report, device: Device, folder: Path, small: bool, few: bool, compiles: bool = False
) -> Iterator[Case]:
    return _all(report, device, folder, small, compiles, lists.routed(few))


def of_library(
    report: Report, device: Device, folder: Path, small: bool, few: bool, compiles: bool = False
) -> Iterator[Case]:
    return _all(report, device, folder, small, compiles, lists.of_library(few))


def _all(
    report: Report, device: Device, folder: Path, small: bool, compiles: bool, listed: Sequence[lists.Family]
) -> Iterator[Case]:
    for number, family in enumerate(listed):
        model = Shared(partial(_written, family, folder / f"model-{number}"))
        wanted = Shared(partial(_of_transformers, model))
        if family.exact and not compiles:
            yield Case(f"{family.name}: what transformers draws", wanted)
        for dtype in _dtypes(family, small):
            both = tuple(Shared(partial(_runner, model, family, device, dtype, eager)) for eager in (True, False))
            if compiles:
                yield Case(f"{family.name}, {dtype}: start, graphs", both[1])
            else:
                yield from leaving(both, _of(report, both, model, wanted, family, dtype))
            del both
            gc.collect()


def _dtypes(family: lists.Family, small: bool) -> tuple[str, ...]:
    if not family.exact:
        return ("bfloat16",)
    return ("float32",) if small else ("float32", "bfloat16")


def _written(family: lists.Family, folder: Path) -> Path:
    folder.mkdir(parents=True)
    return family.write(folder)


def _runner(model: Shared[Path], family: lists.Family, device: Device, dtype: str, eager: bool) -> Runner:
    return runner_of(model(), device, dtype, eager, "auto", ROWS, max_num_batched_tokens=MANY, **family.options)


def _of(
    report: Report, both: Both, model: Shared[Path], wanted: Shared[Rows], family: lists.Family, dtype: str
) -> Iterator[Case]:
    name = f"{family.name}, {dtype}"
    for how, one in zip(("eager", "graphs"), both, strict=True):
        yield Case(f"{name}: start, {how}", one)
        if dtype == "float32":
            yield Case(f"{name}: {how}", partial(_equals_transformers, report, f"{family.name}, {how}", one, wanted))
    yield Case(f"{name}: graphs equal eager steps", partial(check_graphs, report, both, name))
    if dtype != "float32":
        yield Case(f"{name}: near the references", partial(_near, report, both[1], model, family, dtype))


def _of_transformers(model: Shared[Path]) -> Rows:
    """On the host, by the library alone and without a cache."""
    from library_models import generated

    prompts = [prompt(length, length) for length in LENGTHS]
    count = 1 + len(CHUNKS) + STEPS
    return [(all_tokens[-count:], scores) for all_tokens, scores in generated(model(), prompts, count)]


def _equals_transformers(report: Report, name: str, one: Shared[Runner], wanted: Shared[Rows]) -> None:
    for number, ((drawn, scores), (expected, theirs)) in enumerate(
        zip(_drawn(one()), [*wanted(), wanted()[-1]], strict=True)
    ):
        count = len(drawn)
        report.equal(f"tokens of transformers, {name}", *map(torch.tensor, (drawn, expected[:count])), f"{number}")
        moved = max(abs(ours - given) for ours, given in zip(scores, theirs, strict=False))
        report.number(f"logprobs of transformers, {name}", moved, EXACT, f"{number}")


def _drawn(runner: Runner) -> Rows:
    """Each prompt alone and at once; then the longest again in chunks, beside what the others decode."""
    hand, last = hand_of(runner), len(LENGTHS)
    found: Rows = [([], []) for _ in range(last + 1)]

    def run(rows: Sequence[tuple[int, int]], drawing: Sequence[int]) -> None:
        result = hand.run(rows)
        for slot, token, score in zip(drawing, tokens(result), logprobs(result)[::WIDTH], strict=True):
            found[slot][0].append(token)
            found[slot][1].append(score)

    for slot, length in enumerate(LENGTHS):
        hand.admit(slot, prompt(length, length), GREEDY)
        run([(slot, length)], [slot])
    hand.admit(last, prompt(LENGTHS[-1], LENGTHS[-1]), GREEDY)
    others = [(slot, 1) for slot in range(last)]
    for number, count in enumerate(CHUNKS, 1):
        run([*others, (last, count)], range(last + (number == len(CHUNKS))))
    for _ in range(STEPS):
        run([*others, (last, 1)], range(last + 1))
    hand.release(range(last + 1))
    return found


def _near(report: Report, graphed: Shared[Runner], model: Shared[Path], family: lists.Family, dtype: str) -> None:
    """Of a prompt read at once and in chunks, beside the references on the host, which round to the same type."""
    with references("quire.kernels."):
        wanted = of_prompt(_runner(model, family, Device("cpu", 0), dtype, True), MANY)
    for chunk in (MANY, 16):
        moved = float((of_prompt(graphed(), chunk) - wanted).abs().mean())
        limit = NEAR if family.exact else CODED
        report.number(f"{family.name}: logprobs beside the references', {dtype}", moved, limit, f"chunks of {chunk}")
