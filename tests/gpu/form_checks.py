"""Whole models of quantized weights on the device: graphs, batches, and the references of all their products."""

import contextlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import forms
import torch
from report import Case, Report
from shared import Shared, leaving
from steps import GREEDY, decode, hand_of, mixed, prompt, runner_of, same

from quire.kernels.catalog import OPERATIONS
from quire.kernels.experts.pack import pack_experts
from quire.kernels.linear import linear_f8, linear_int8
from quire.kernels.linear.pack import pack
from quire.proto.messages.params import SamplingParams
from quire.worker.device.device import Device
from quire.worker.step.runner import Runner

ROWS = 8
"""More than dense products of our own take."""
FEW, MANY = 64, 80
"""Tokens of mixed steps, on both sides of the border of products of our own: buckets, and the second is the largest."""
LENGTHS = (16, 40)
LIMITS = {"float32": 0.03, "bfloat16": 0.1}
"""Of the mean difference of a token's logprob: activations may be rounded to other codes, and that is all."""
PROMPTED = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True, prompt_logprobs=0)
LINEAR = "quire.kernels.linear.linear"
"""How the modules begin whose operations are products."""

Both = tuple[Shared[Runner], Shared[Runner]]
"""Eager, and with graphs."""


def quantized(report: Report, device: Device, folder: Path, small: bool, few: bool, stands_in: bool) -> Iterator[Case]:
    dtype = "float32" if small else "bfloat16"
    for name in forms.names(few, stands_in):
        model = Shared(partial(forms.quantized, name, folder, small))
        both = tuple(Shared(partial(_runner, model, device, dtype, eager)) for eager in (True, False))
        yield from leaving(both, _of(report, both, name, dtype))


def _runner(model: Shared[forms.Quantized], device: Device, dtype: str, eager: bool) -> Runner:
    folder, load_format, options = model()
    return runner_of(folder, device, dtype, eager, load_format, ROWS, max_num_batched_tokens=MANY, **options)


def _of(report: Report, both: Both, name: str, dtype: str) -> Iterator[Case]:
    yield Case(f"{name}: start, eager", both[0])
    yield Case(f"{name}: start, graphs", both[1])
    yield Case(f"{name}: graphs equal eager steps", partial(check_graphs, report, both, name))
    yield Case(f"{name}: a token alone and beside others", partial(_alone, report, both[1], name, dtype))
    yield Case(f"{name}: near the references", partial(_near, report, both[0], name, dtype))
    if name in forms.STORED:
        yield Case(f"{name}: weights of the tool", partial(_weights, report, both[0], name, dtype))


def _lengths(rows: int) -> list[int]:
    return [LENGTHS[slot % len(LENGTHS)] for slot in range(rows)]


def check_graphs(report: Report, both: Both, name: str) -> None:
    """Steps of exactly a bucket's size do the same work."""
    eager, graphed = (one() for one in both)
    for rows in (1, ROWS):
        got, wanted = (decode(one, _lengths(rows), GREEDY, count=2) for one in (graphed, eager))
        same(report, f"{name}: graph of a decode step", got, wanted)
    for count in (FEW, MANY):
        same(report, f"{name}: graph of a mixed step", mixed(graphed, count), mixed(eager, count))


def _alone(report: Report, graphed: Shared[Runner], name: str, dtype: str) -> None:
    """A row's token is the same, and what is said of it nearly: dense products of few and of more round otherwise."""
    alone, beside = (decode(graphed(), _lengths(rows), GREEDY, count=1) for rows in (1, ROWS))
    report.equal(f"{name}: alone and beside others", torch.tensor(beside[0][:1]), torch.tensor(alone[0]))
    moved = max(abs(one - other) for one, other in zip(beside[1], alone[1], strict=False))
    report.number(f"{name}: logprobs alone and beside others", moved, LIMITS[dtype])


def _near(report: Report, eager: Shared[Runner], name: str, dtype: str) -> None:
    """Of a prompt read at once and in chunks, by products of many tokens and of few."""
    for chunk in (MANY, 16):
        got = of_prompt(eager(), chunk)
        with references():
            wanted = of_prompt(eager(), chunk)
        moved = float((got - wanted).abs().mean())
        report.number(f"{name}: logprobs beside the references'", moved, LIMITS[dtype], f"chunks of {chunk}")


def of_prompt(runner: Runner, chunk: int) -> torch.Tensor:
    """Logprobs of a prompt's own tokens, whichever are likely."""
    hand, found = hand_of(runner), []
    hand.admit(0, prompt(MANY, 7), PROMPTED)
    for _ in range(0, MANY, chunk):
        result = hand.run([(0, chunk)])
        found += [entry.logprob for part in result.logprobs if part.prompt for entry in part.entries]
    hand.release([0])
    if len(found) != MANY - 1:
        raise RuntimeError(f"{len(found)} logprobs of a prompt of {MANY} tokens")
    return torch.tensor(found, dtype=torch.float64)


PACKS = pack, pack_experts, linear_f8.pack, linear_int8.pack, linear_int8.pack_integers
"""How weights are stored is known to products alone; no catalog has these."""


@contextlib.contextmanager
def references(rooms: str = LINEAR) -> Iterator[None]:
    """Operations of modules that begin so, products if nothing is said, are computed by their references on every
    device."""
    with contextlib.ExitStack() as stack:
        for one in (*OPERATIONS, *PACKS):
            if one.reference.__module__.startswith(rooms):
                stack.enter_context(mock.patch.object(one, "implementation", lambda device, one=one: one.reference))
        yield


def _weights(report: Report, eager: Shared[Runner], name: str, dtype: str) -> None:
    """What was loaded means what the format's own tool makes of the files, bit for bit; what no format has touched is
    in the model's type."""
    sys.path.append(str(forms.TESTS / "worker" / "quant"))
    from meant import not_of_tool, weights_of

    left = set() if dtype == "float32" else forms.left_alone(name)
    wrong = [weight for weight in not_of_tool(weights_of(eager()._model), name) if weight not in left]
    report.holds(f"{name}: weights of the tool", not wrong, ", ".join(wrong))
