"""Models that give labels or vectors on the device, of our own and of transformers' modules, beside transformers on the
host in float32."""

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import families  # noqa: F401  it finds the tests' own lists
import numpy as np
import torch
from report import Case, Report
from shared import Shared, leaving
from steps import GREEDY, hand_of, runner_of
from tensors import row_error

from quire.worker.device.device import Device
from quire.worker.step.runner import Runner

PROMPTS = [[2, 7, 9, 3, 30, 31, 3], [2, 7, 3], [2, 5, 3, *range(40, 100), 3]]
PAIRS = [4, 0, 3]
"""Where the second text of each prompt begins, for models that know types of tokens."""
LABELS = {"num_labels": 3}
CHUNKS = (20, 30)
"""In which the longest prompt of a decoder begins."""
LIMITS = {"float32": 1e-3, "bfloat16": 0.2}
"""Of a prompt's relative error: models this small and steep make much of a rounding."""
ROWS, MANY = 4, 128
OURS = {
    "BertForSequenceClassification": LABELS,
    "BertForTokenClassification": LABELS,
    "BertModel": {},
    "Qwen3ForSequenceClassification": LABELS,
    "Qwen3ForTokenClassification": LABELS,
    "Qwen3Model": {},
    "Gemma2ForSequenceClassification": LABELS,
    "MixtralForSequenceClassification": LABELS,
}
"""With a head of labels of a prompt, of its tokens, or none: fields of the config."""
LIBRARY = {
    "ModernBertModel": {"local_attention": 16, "global_attn_every_n_layers": 3},
    "ModernBertForSequenceClassification": {"local_attention": 16, "classifier_pooling": "mean", **LABELS},
    "ModernBertForTokenClassification": {"local_attention": 16, **LABELS},
    "ElectraForSequenceClassification": {"type_vocab_size": 2, **LABELS},
    "ArceeForSequenceClassification": {"num_key_value_heads": 2, **LABELS},
}
"""By the modules of transformers."""

FEW = ("BertForSequenceClassification", "Qwen3ForTokenClassification")
"""Enough to see that the scripts run."""


class Headed(NamedTuple):
    """A model of this part."""

    name: str
    write: Callable[[Path], object]
    paired: bool
    by_token: bool
    looks_ahead: bool
    options: dict[str, Any]


def heads(
    report: Report, device: Device, folder: Path, small: bool, few: bool, compiles: bool = False
) -> Iterator[Case]:
    """As `family_checks.families`."""
    for one in _listed(few):
        model = Shared(partial(_written, one, folder / one.name))
        wanted = Shared(partial(_of_transformers, model, one))
        if not compiles:
            yield Case(f"{one.name}: what transformers gives", wanted)
        for dtype, eager in (("float32", True), ("float32", False), ("bfloat16", False))[: 2 if small else 3]:
            runner = Shared(partial(_runner, model, one, device, dtype, eager))
            name = f"{one.name}, {dtype}, {'eager' if eager else 'graphs'}"
            checks = _of(report, runner, one, wanted, name, LIMITS[dtype])
            yield from leaving((runner,), islice(checks, 1 if compiles else None))
            del runner
            gc.collect()


def _listed(few: bool) -> list[Headed]:
    import labelled_models
    import library_models

    base = library_models.BASE | {"num_key_value_heads": 4}
    ours = [(name, partial(labelled_models.write, architecture=name, **own), {}) for name, own in OURS.items()]
    theirs = [
        (name, partial(library_models.write, architecture=name, fields=base | own), {"model_impl": "transformers"})
        for name, own in LIBRARY.items()
    ]
    found = [
        Headed(
            name, write, name.startswith(("BertFor", "Electra")), "ForToken" in name,
            name.startswith(("Bert", "Modern", "Electra")), options,
        )
        for name, write, options in (*ours, *theirs)
    ]  # fmt: skip
    return [one for one in found if one.name in FEW] if few else found


def _written(one: Headed, folder: Path) -> Path:
    folder.mkdir(parents=True)
    one.write(folder)
    return folder


def _runner(model: Shared[Path], one: Headed, device: Device, dtype: str, eager: bool) -> Runner:
    options = {"max_num_batched_tokens": MANY, "task": "pooling", **one.options}
    return runner_of(model(), device, dtype, eager, "auto", ROWS, **options)


def _of_transformers(model: Shared[Path], one: Headed) -> list[torch.Tensor]:
    from library_models import first_results

    found = [torch.from_numpy(given) for given in first_results(model(), PROMPTS, PAIRS if one.paired else None)]
    return [given[0 if one.looks_ahead else -1] for given in found] if one.name.endswith("Model") else found


def _of(
    report: Report, runner: Shared[Runner], one: Headed, wanted: Shared[list[torch.Tensor]], name: str, limit: float
) -> Iterator[Case]:
    def at_once() -> None:
        for prompt, got, expected in zip(PROMPTS, _at_once(runner(), one), wanted(), strict=True):
            report.number(f"{name}: prompts at once", _error(got, expected), limit, f"{len(prompt)}")

    def in_chunks() -> None:
        report.number(f"{name}: a prompt in chunks", _error(_in_chunks(runner()), wanted()[-1]), limit)

    yield Case(f"{name}: start", runner)
    yield Case(f"{name}: prompts at once", at_once)
    if not one.looks_ahead:
        yield Case(f"{name}: a prompt in chunks", in_chunks)


def _at_once(runner: Runner, one: Headed) -> list[torch.Tensor]:
    """What each of PROMPTS gives, all in one step."""
    hand, slots = hand_of(runner), range(len(PROMPTS))
    for slot in slots:
        hand.admit(slot, PROMPTS[slot], GREEDY, second_text=PAIRS[slot] if one.paired else 0)
    result = hand.run([(slot, len(PROMPTS[slot])) for slot in slots])
    hand.release(slots)
    return list(map(_numbers, result.embeddings))


def _in_chunks(runner: Runner) -> torch.Tensor:
    """The numbers of the longest prompt: one row, or those of its tokens in all steps."""
    hand, longest = hand_of(runner), PROMPTS[-1]
    hand.admit(0, longest, GREEDY)
    results = [hand.run([(0, count)]) for count in (*CHUNKS, len(longest) - sum(CHUNKS))]
    hand.release([0])
    return torch.cat([_numbers(one) for result in results for one in result.embeddings])


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of all numbers of a prompt: those of one token are few, and may be small."""
    return row_error(got.flatten(), wanted.flatten())


def _numbers(vector: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(vector, np.float32).copy())
