"""Whole models that read images on the device: rows of towers, and tokens behind images, beside those of the references
on the host in float32."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import towers
from form_checks import references
from plans import logprobs, tokens
from report import Case, Report
from shared import Shared, leaving
from steps import GREEDY, Drawn, hand_of, runner_of, same
from tensors import row_error
from towers import TOWERS, Seen

from quire.worker.device.device import Device
from quire.worker.step.runner import Runner

PROMPTED = ("qwen3-vl", "gemma3", "gemma4")
"""Families that prompts are run of: rows that reach deeper layers, too, and images whose tokens see each other."""
EXACT = 1e-3
"""Limit of a row's relative error in float32."""
COUNT = 12
ROWS = 4
"""Slots: prompts are few, so graphs are few as well."""


def vision(report: Report, device: Device, folder: Path, small: bool, few: bool) -> Iterator[Case]:
    """Each tower, and then prompts with images."""
    for name in tuple(TOWERS)[:1] if few and not small else TOWERS:
        model = Shared(partial(towers.write, name, folder / name))
        tower = TOWERS[name]
        seen = Shared(partial(towers.items, folder / name / "run", tower.patch, tower.grids, merge=tower.merge))
        wanted = Shared(partial(_host_rows, model, seen))
        yield Case(f"{name}: rows of the references", wanted)
        for dtype in _dtypes(small):
            runner = Shared(partial(_runner, model, seen, device, dtype, True))
            limit = EXACT if dtype == "float32" else tower.rounding
            yield from leaving((runner,), _rows(report, runner, seen, wanted, f"{name}, {dtype}", limit))
    for name in PROMPTED[:1] if few and not small else PROMPTED:
        yield from _prompts(report, device, folder / f"prompts of {name}", name, small)


def _dtypes(small: bool) -> tuple[str, ...]:
    return ("float32",) if small else ("float32", "bfloat16")


def _runner(model: Shared[Path], seen: Shared[Seen], device: Device, dtype: str, eager: bool) -> Runner:
    return runner_of(model(), device, dtype, eager, "auto", ROWS, run_dir=str(seen().run_dir))


@contextlib.contextmanager
def _on_host(model: Shared[Path], seen: Shared[Seen]) -> Iterator[Runner]:
    """A runner on the host whose operations are the references, which need no library of ours."""
    with references("quire.kernels."):
        yield _runner(model, seen, Device("cpu", 0), "float32", True)


def _host_rows(model: Shared[Path], seen: Shared[Seen]) -> list[torch.Tensor]:
    with _on_host(model, seen) as runner:
        return _encoded(runner, seen())


@torch.inference_mode()
def _encoded(runner: Runner, seen: Seen, picked: int | None = None) -> list[torch.Tensor]:
    """Rows of each item, or of the picked one alone, out of encoder memory: [tokens, row] on the host."""
    encoder, encodes = runner._media._encoder, seen.encodes if picked is None else seen.encodes[picked : picked + 1]
    encoder.memory.rows.zero_()
    encoded = encoder.encode(encodes)
    runner._device.synchronize()
    if encoded.lost.any():
        raise RuntimeError("the pixels of an item were not found")
    found = []
    for one in encodes:
        numbers = encoder.memory.row_numbers(one.pages, encoder.num_rows(one.grid), "checks")
        found.append(encoder.memory.rows.cpu()[torch.from_numpy(numbers)].float())
    return found


def _rows(
    report: Report, runner: Shared[Runner], seen: Shared[Seen], wanted: Shared[list[torch.Tensor]], name: str,
    limit: float,
) -> Iterator[Case]:  # fmt: skip
    def together() -> None:
        for grid, got, expected in zip(seen().grids, _encoded(runner(), seen()), wanted(), strict=True):
            report.number(f"{name}: rows of items at once", row_error(got, expected), limit, f"{grid}")

    def alone() -> None:
        for picked, (grid, expected) in enumerate(zip(seen().grids, wanted(), strict=True)):
            (got,) = _encoded(runner(), seen(), picked)
            report.number(f"{name}: rows of an item alone", row_error(got, expected), limit, f"{grid}")

    yield Case(f"{name}: start", runner)
    yield Case(f"{name}: items at once", together)
    yield Case(f"{name}: an item alone", alone)


def _prompts(report: Report, device: Device, folder: Path, family: str, small: bool) -> Iterator[Case]:
    """Tokens behind images and frames of a video: with graphs as eager, in float32 those of the host."""
    tower, model = TOWERS[family], Shared(partial(towers.write, family, folder))
    seen = Shared(partial(towers.items, folder / "run", tower.patch, tower.asked, 1, tower.merge))
    wanted = Shared(partial(_on_host_drawn, model, seen, tower.whole))
    yield Case(f"{family}: tokens of the references", wanted)
    for dtype in _dtypes(small):
        both = [Shared(partial(_runner, model, seen, device, dtype, eager)) for eager in (True, False)]
        eager, graphs = (Shared(partial(_drawn, one, model, seen, tower.whole)) for one in both)
        for how, drawn in (("eager", eager), ("graphs", graphs)):
            yield Case(f"{family}, {dtype}: draws, {how}", drawn)
            if dtype == "float32":
                name = f"{family}: tokens of the references, {how}"
                yield Case(name, partial(_equal_tokens, report, name, drawn, wanted))
        name = f"{family}, {dtype}: graphs equal eager steps behind images"
        yield Case(name, lambda name=name, eager=eager, graphs=graphs: same(report, name, graphs(), eager()))


def _equal_tokens(report: Report, name: str, drawn: Shared[Drawn], wanted: Shared[Drawn]) -> None:
    report.equal(name, *(torch.tensor(one()[0]) for one in (drawn, wanted)))


def _on_host_drawn(model: Shared[Path], seen: Shared[Seen], whole: bool) -> Drawn:
    with _on_host(model, seen) as runner:
        return _drawn(lambda: runner, model, seen, whole)


def _drawn(runner: Callable[[], Runner], model: Shared[Path], seen: Shared[Seen], whole: bool) -> Drawn:
    """A prompt with all items at once, the same in chunks that cut them, or end with them where they are `whole`, and
    steps of both; the second encodes nothing."""
    ids, spans = seen().prompt(towers.image_token(model()))
    hand, results = hand_of(runner()), []
    hand.admit(0, ids, GREEDY, room=COUNT, spans=spans)
    results.append(hand.run([(0, len(ids))], encodes=seen().encodes, binds=seen().binds(0)))
    hand.admit(1, ids, GREEDY, room=COUNT, spans=spans)
    changes = {"binds": seen().binds(1)}
    borders = [spans[0].stop, spans[-1].stop] if whole else [9, 23]
    for begin, end in itertools.pairwise([0, *borders, len(ids)]):
        last = hand.run([(1, end - begin)], **changes)
        changes = {}
    results.append(last)
    results += [hand.run([(0, 1), (1, 1)]) for _ in range(COUNT)]
    hand.release((0, 1))
    return [token for one in results for token in tokens(one)], [value for one in results for value in logprobs(one)]
