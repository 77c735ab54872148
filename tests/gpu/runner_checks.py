"""A worker's runner in this process: graphs against eager steps, transformers, memory in a steady state, NCCL."""

import gc
from pathlib import Path

import models
import numpy as np
import torch
from plans import Hand, logprobs, tokens
from report import Report

from quire.proto.params import SamplingParams
from quire.worker.config import WorkerConfig
from quire.worker.device import Device
from quire.worker.graphs import decode_buckets, mixed_buckets
from quire.worker.parallel import ProcessGroup, SingleGroup
from quire.worker.runner import Runner
from quire.worker.start import start

BLOCK_SIZE = 16
ROWS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=10_000, ignore_eos=True, logprobs=4)
RANDOM = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=5, max_tokens=10_000, ignore_eos=True, logprobs=4)


def check_runner(report: Report, device: Device, folder: Path, small: bool) -> None:
    for dtype in ("float32",) if small else ("float32", "bfloat16"):
        report.go_on()
        model = models.write(folder / dtype, models.SMALL)
        eager, graphed = (_runner(model, device, dtype, eager) for eager in (True, False))
        _same_buckets(report, eager, graphed, dtype, small)
        _padding(report, graphed, dtype)
        _steady(report, graphed, device, dtype, small)
        _short_cache(report, graphed, _runner(model, device, dtype, False, kv_cache_dtype="fp8"), dtype)
        del eager, graphed
        gc.collect()


def _runner(model: Path, device: Device, dtype: str, eager: bool, load_format: str = "dummy", **changes) -> Runner:
    config = WorkerConfig(
        model=str(model),
        load_format=load_format,
        dtype=dtype,
        device="cuda" if device.is_cuda else "cpu",
        max_num_seqs=ROWS,
        max_num_batched_tokens=640,
        block_size=BLOCK_SIZE,
        kv_cache_memory_bytes=256 << 20 if device.is_cuda else 32 << 20,
        enforce_eager=eager,
        **changes,
    )
    return start(config, 0, device, SingleGroup).executor


def _prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, 1000, length).tolist()


def _same_buckets(report: Report, eager: Runner, graphed: Runner, dtype: str, small: bool) -> None:
    """Steps of exactly a bucket's size do the same work with and without its graph."""
    decodes = [bucket.num_rows for bucket in decode_buckets(ROWS)]
    mixed = [bucket.num_tokens for bucket in mixed_buckets(640, ROWS)]
    for rows in decodes[::3] if small else decodes:
        report.go_on()
        for params in (GREEDY, RANDOM):
            results = [_decode(runner, rows, params) for runner in (eager, graphed)]
            _equal(report, f"graph of a decode step, {dtype}", *results, f"{rows} rows")
    for num_tokens in mixed[::6] if small else mixed:
        report.go_on()
        results = [_mixed(runner, num_tokens) for runner in (eager, graphed)]
        _equal(report, f"graph of a mixed step, {dtype}", *results, f"{num_tokens} tokens")


def _equal(
    report: Report, name: str, got: tuple[list[int], list[float]], wanted: tuple[list[int], list[float]], detail: str
) -> None:
    report.equal(f"{name}: tokens", torch.tensor(got[0]), torch.tensor(wanted[0]), detail)
    report.equal(f"{name}: logprobs", *(torch.tensor(part[1], dtype=torch.float64) for part in (got, wanted)), detail)


def _decode(runner: Runner, rows: int, params: SamplingParams, count: int = 4) -> tuple[list[int], list[float]]:
    """Every row's prompt alone and eager (of one length beyond the graphs' or below), then steps of all rows."""
    hand = Hand(runner, BLOCK_SIZE)
    for slot in range(rows):
        hand.admit(slot, _prompt(540 if slot % 2 else 16, slot), params, room=count)
        hand.run([(slot, 540 if slot % 2 else 16)])
    results = [hand.run([(slot, 1) for slot in range(rows)]) for _ in range(count)]
    hand.release(range(rows))
    return [token for one in results for token in tokens(one)], [value for one in results for value in logprobs(one)]


def _mixed(runner: Runner, num_tokens: int) -> tuple[list[int], list[float]]:
    """Three decoding rows beside two prompts, `num_tokens` tokens in all."""
    hand = Hand(runner, BLOCK_SIZE)
    for slot in range(3):
        hand.admit(slot, _prompt(16, slot), GREEDY, room=2)
        hand.run([(slot, 16)])
    first = (num_tokens - 3) // 2
    lengths = {3: first, 4: num_tokens - 3 - first}
    for slot, length in lengths.items():
        hand.admit(slot, _prompt(length, slot), GREEDY)
    result = hand.run([*((slot, 1) for slot in range(3)), *lengths.items()])
    hand.release(range(5))
    return tokens(result), logprobs(result)


def _padding(report: Report, graphed: Runner, dtype: str) -> None:
    """Rows of padding change the work's shape, so sums may be rounded otherwise, and no more."""
    limit = {"float32": 1e-4, "bfloat16": 0.1}[dtype]
    alone = _decode(graphed, 4, GREEDY)[1]
    beside = _decode(graphed, 5, GREEDY)[1]
    width = 5  # numbers of a row in one step
    first = torch.tensor(alone).view(-1, 4, width)[0]
    other = torch.tensor(beside).view(-1, 5, width)[0, :4]
    report.number(f"4 rows beside a fifth, {dtype}: logprobs", float((first - other).abs().max()), limit)


def _short_cache(report: Report, full: Runner, short: Runner, dtype: str) -> None:
    """A cache of 8-bit floats moves logprobs by little."""
    wanted, got = (torch.tensor(_decode(runner, 8, GREEDY, count=1)[1]).view(8, 5) for runner in (full, short))
    # of the likeliest tokens, in their order, whichever they are
    moved = float((got - wanted)[:, 1:].abs().mean())
    report.number(f"cache of 8-bit floats, {dtype}: logprobs", moved, 0.2)


def _steady(report: Report, runner: Runner, device: Device, dtype: str, small: bool) -> None:
    """In a steady state no memory is taken, on the device or of pinned pages."""
    hand = Hand(runner, BLOCK_SIZE)
    plain = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=10_000, ignore_eos=True)
    for slot in range(ROWS):
        hand.admit(slot, _prompt(10, slot), plain)
    hand.run([(slot, 10) for slot in range(ROWS)])
    for _ in range(20):
        hand.run([(slot, 1) for slot in range(ROWS)])
    before = device.num_allocations()
    for _ in range(20 if small else 200):
        hand.run([(slot, 1) for slot in range(ROWS)])
    report.number(f"allocations in 200 steady steps, {dtype}", device.num_allocations() - before, 0)
    hand.release(range(ROWS))


def check_transformers(report: Report, device: Device, folder: Path, small: bool) -> None:
    """Greedy tokens in float32 equal those of transformers on the same device, with and without graphs."""
    import transformers

    for name, changes in (
        ("llama", {}),
        ("qwen3", {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}),
    ):
        report.go_on()
        model = models.write_random(folder / name, {**models.SMALL, **changes}, seed=3)
        reference = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="eager"
        )
        reference = reference.to(device.torch).eval()
        for eager in (True, False):
            hand = Hand(_runner(model, device, "float32", eager, "auto"), BLOCK_SIZE)
            for slot, length in enumerate((3, 33, 200)):
                prompt, count = _prompt(length, length), 8 if small else 24
                hand.admit(slot, prompt, GREEDY)
                drawn = tokens(hand.run([(slot, length)]))
                while len(drawn) < count:
                    drawn += tokens(hand.run([(slot, 1)]))
                with torch.inference_mode():
                    wanted = reference.generate(
                        torch.tensor([prompt], device=device.torch), max_new_tokens=count, min_new_tokens=count,
                        do_sample=False, eos_token_id=None, pad_token_id=0,
                    )[0, length:]  # fmt: skip
                how = "eager" if eager else "graphs"
                report.equal(f"tokens of transformers, {name}, {how}", torch.tensor(drawn), wanted.cpu(), f"{length}")


def check_group(report: Report, device: Device, folder: Path) -> None:
    """A group of one over NCCL reduces inside a captured graph; over Gloo on the CPU it reduces."""
    group = ProcessGroup(0, 1, device.torch, str(folder / "rendezvous"))
    try:
        x = torch.arange(4096.0, device=device.torch)
        group.all_reduce(x.clone())
        report.equal("all_gather over a group of one", group.all_gather(x), x)
        report.holds("minimum over a group of one", group.minimum(7) == 7)
        doubled = torch.zeros_like(x)

        def step() -> None:
            doubled.copy_(2 * group.all_reduce(x.clone()))

        if not device.is_cuda:
            step()
        else:
            graph = device.capture(step, None)
            x.add_(1.0)
            graph.replay()
            device.synchronize()
        report.equal("all_reduce over a group of one, in a graph", doubled, 2 * x)
    finally:
        group.close()
