"""A worker's runner in this process: graphs against eager steps, transformers, memory in a steady state, NCCL."""

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import models
import torch
from grammar_checks import check_ahead
from options import LETTERS, OPTIONS
from plans import Hand, tokens
from report import Case, Report
from shared import Shared, leaving
from steps import BLOCK_SIZE, GREEDY, ROWS, Drawn, decode, mixed, prompt, runner_of, same

from quire.proto.messages.params import SamplingParams
from quire.worker.device.device import Device
from quire.worker.device.parallel import connect
from quire.worker.step.graphs import decode_buckets, mixed_buckets
from quire.worker.step.runner import Runner

RANDOM = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=5, max_tokens=10_000, ignore_eos=True, logprobs=4)

Both = tuple[Shared[Runner], Shared[Runner]]
"""Eager, and with graphs."""


def runner(report: Report, device: Device, folder: Path, small: bool, few: bool) -> Iterator[Case]:
    for dtype in ("float32",) if small else ("bfloat16",) if few else ("float32", "bfloat16"):
        model = models.write(folder / dtype, models.SMALL)
        both = tuple(Shared(partial(runner_of, model, device, dtype, eager)) for eager in (True, False))
        short = Shared(partial(runner_of, model, device, dtype, False, kv_cache_dtype="fp8"))
        yield from leaving((*both, short), _of(report, both, short, device, dtype, few))
        del both, short
        gc.collect()


def _of(report: Report, both: Both, short: Shared[Runner], device: Device, dtype: str, few: bool) -> Iterator[Case]:
    """Of one type of numbers."""
    yield Case(f"start, eager, {dtype}", both[0])
    yield Case(f"start, graphs, {dtype}", both[1])
    yield from _same_buckets(report, both, dtype, few)
    for name, params in OPTIONS.items():
        yield Case(f"launch never waits, {dtype}: {name}", partial(_never_waits, report, both, device, name, params))
    yield Case(
        f"grammars ahead of results, {dtype}",
        lambda: check_ahead(report, both[0](), both[1](), device, BLOCK_SIZE),
    )
    yield Case(f"padding, {dtype}", lambda: _padding(report, both[1](), dtype))
    yield Case(f"steady, {dtype}", partial(_steady, report, both[1], device, dtype, few))
    yield Case(f"8-bit cache, {dtype}", partial(_short_cache, report, both[1], short, dtype))


def _same_buckets(report: Report, both: Both, dtype: str, few: bool) -> Iterator[Case]:
    """Steps of exactly a bucket's size do the same work with and without its graph."""
    decodes = [bucket.num_rows for bucket in decode_buckets(ROWS)]
    others = [bucket.num_tokens for bucket in mixed_buckets(640, ROWS)]
    for rows, params in itertools.product(decodes[::3] if few else decodes, (GREEDY, RANDOM)):
        name = f"graph of a decode step, {dtype}"
        run = partial(
            _same, report, name, both, lambda one, rows=rows, params=params: decode(one, _lengths(rows), params)
        )
        yield Case(f"{name}, {rows} rows, temperature {params.temperature}", run)
    for num_tokens in others[::6] if few else others:
        name = f"graph of a mixed step, {dtype}"
        run = partial(_same, report, name, both, partial(mixed, num_tokens=num_tokens))
        yield Case(f"{name}, {num_tokens} tokens", run)


def _same(report: Report, name: str, both: Both, run: Callable[[Runner], Drawn]) -> None:
    same(report, name, *(run(one()) for one in both))


@contextlib.contextmanager
def never_waiting(device: Device) -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""
    if not device.is_cuda:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _never_waits(report: Report, both: Both, device: Device, name: str, params: SamplingParams) -> None:
    """Twice, because the first time compiles; eager and with graphs, which all draw the same."""
    results = []
    for one, watch in itertools.product(both, (contextlib.nullcontext, partial(never_waiting, device))):
        hand = Hand(one(), BLOCK_SIZE, watch)
        drawn: list[int] = []
        for slot, length in enumerate((16, 100)):
            hand.admit(slot, prompt(length, slot), params, room=6)
            drawn += tokens(hand.run([(slot, length)]))
        for _ in range(4):
            drawn += tokens(hand.run([(0, 1), (1, 1)]))
        hand.release(range(2))
        results.append(drawn)
    for got in results[1:]:
        report.equal(f"the same tokens, whether watched or captured: {name}", *map(torch.tensor, (got, results[0])))
    if params.structured is not None:
        report.holds("a grammar is kept", all(token in LETTERS for token in results[-1]), f"{results[-1]}")


def _lengths(rows: int) -> list[int]:
    """Of prompts beyond the graphs, or below."""
    return [540 if slot % 2 else 16 for slot in range(rows)]


def _padding(report: Report, graphed: Runner, dtype: str) -> None:
    """Rows of padding change the work's shape, so sums may be rounded otherwise, and no more."""
    limit = {"float32": 1e-4, "bfloat16": 0.1}[dtype]
    alone = decode(graphed, _lengths(4), GREEDY)[1]
    beside = decode(graphed, _lengths(5), GREEDY)[1]
    width = 5  # numbers of a row in one step
    first = torch.tensor(alone).view(-1, 4, width)[0]
    other = torch.tensor(beside).view(-1, 5, width)[0, :4]
    report.number(f"4 rows beside a fifth, {dtype}: logprobs", float((first - other).abs().max()), limit)


def _short_cache(report: Report, full: Shared[Runner], short: Shared[Runner], dtype: str) -> None:
    """A cache of 8-bit floats moves logprobs by little."""
    wanted, got = (torch.tensor(decode(one(), _lengths(8), GREEDY, count=1)[1]).view(8, 5) for one in (full, short))
    # of the likeliest tokens, in their order, whichever they are
    moved = float((got - wanted)[:, 1:].abs().mean())
    report.number(f"cache of 8-bit floats, {dtype}: logprobs", moved, 0.2)


def _steady(report: Report, graphed: Shared[Runner], device: Device, dtype: str, few: bool) -> None:
    """In a steady state no memory is taken, on the device or of pinned pages."""
    hand = Hand(graphed(), BLOCK_SIZE)
    plain = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=10_000, ignore_eos=True)
    for slot in range(ROWS):
        hand.admit(slot, prompt(10, slot), plain)
    hand.run([(slot, 10) for slot in range(ROWS)])
    for _ in range(20):
        hand.run([(slot, 1) for slot in range(ROWS)])
    before = device.num_allocations()
    for _ in range(20 if few else 200):
        hand.run([(slot, 1) for slot in range(ROWS)])
    report.number(f"allocations in 200 steady steps, {dtype}", device.num_allocations() - before, 0)
    hand.release(range(ROWS))


def transformers(report: Report, device: Device, folder: Path, small: bool, few: bool) -> Iterator[Case]:
    """Greedy tokens in float32 equal those of transformers on the same device, with and without graphs."""
    other = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
    for name, changes in (("llama", {}), ("qwen3", other)):
        model = Shared(partial(models.write_random, folder / name, {**models.SMALL, **changes}, seed=3))
        wanted = Shared(partial(_greedy, model, device, few))
        yield Case(f"{name}: what transformers draws", wanted)
        for eager in (True, False):
            run = partial(_equals_transformers, report, name, model, wanted, device, eager)
            yield Case(f"{name}: {'eager' if eager else 'graphs'}", run)


def _greedy(model: Shared[Path], device: Device, few: bool) -> dict[int, list[int]]:
    """Prompt length -> tokens."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model(), dtype=torch.float32, attn_implementation="eager")
    reference, count = reference.to(device.torch).eval(), 8 if few else 24
    drawn = {}
    for length in (3, 33, 200):
        given = torch.tensor([prompt(length, length)], device=device.torch)
        with torch.inference_mode():
            drawn[length] = reference.generate(
                given, max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
            )[0, length:].tolist()  # fmt: skip
    return drawn


def _equals_transformers(
    report: Report, name: str, model: Shared[Path], wanted: Shared[dict[int, list[int]]], device: Device, eager: bool
) -> None:
    how = "eager" if eager else "graphs"
    hand = Hand(runner_of(model(), device, "float32", eager, "auto"), BLOCK_SIZE)
    for slot, (length, expected) in enumerate(wanted().items()):
        hand.admit(slot, prompt(length, length), GREEDY)
        drawn = tokens(hand.run([(slot, length)]))
        while len(drawn) < len(expected):
            drawn += tokens(hand.run([(slot, 1)]))
        report.equal(f"tokens of transformers, {name}, {how}", *map(torch.tensor, (drawn, expected)), f"{length}")


def group(report: Report, device: Device, folder: Path, small: bool, few: bool) -> Iterator[Case]:
    yield Case(
        "a group of one: starts and ends, and proves nothing about NCCL", partial(_group, report, device, folder)
    )


def _group(report: Report, device: Device, folder: Path) -> None:
    """NCCL reduces a group of one by doing nothing in place. That it starts, is captured and ends is all this says."""
    groups = connect(0, 1, 1, device.torch, str(folder / "rendezvous"))
    alone = groups.tensor
    try:
        x = torch.arange(4096.0, device=device.torch)
        alone.all_reduce(x.clone())
        report.equal("group of one, not NCCL: all_gather", alone.all_gather(x), x)
        report.holds("group of one, not NCCL: minimum", alone.minimum(7) == 7)
        doubled = torch.zeros_like(x)

        def step() -> None:
            doubled.copy_(2 * alone.all_reduce(x.clone()))

        if not device.is_cuda:
            step()
        else:
            graph = device.capture(step, None)
            x.add_(1.0)
            graph.replay()
            device.synchronize()
        report.equal("group of one, not NCCL: all_reduce in a graph", doubled, 2 * x)
    finally:
        groups.close()
