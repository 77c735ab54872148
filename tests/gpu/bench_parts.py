"""What each part of `bench.py` measures."""

import contextlib
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import chip
import workloads
from report import Case, Given, Report
from shared import Shared

COMPILE_SECONDS = 50.0
CASE_SECONDS = 40.0
"""For one latency: what takes longer is named as not measured."""


def cases(part: str, report: Report, given: Given) -> Iterator[Case]:
    bench = workloads.of(given.device, given.stands_in)
    match part:
        case "facts":
            import fact_checks

            return fact_checks.facts(report, given)
        case "ceilings":
            return iter([Case("copy, read, products", partial(_ceilings, report, given))])
        case "latencies":
            return _latencies(part, report, given, bench)
        case "experts" | "experts_mxfp4":
            return _latencies(part, report, given, workloads.experts_of(part, given.device, given.stands_in))
        case "throughput":
            return _throughput(report, given, bench)
        case "transformers":
            return iter([Case(bench.comparison.name, partial(_peer, report, given, bench))])
        case "tower":
            import tower_rows

            images = workloads.SMALL_IMAGES if given.device == "cpu" else workloads.IMAGES
            return tower_rows.tower(report, given, images)
        case "cameras" | "cameras_fp8":
            import camera_rows

            form = "fp8" if part.endswith("fp8") else "auto"
            return camera_rows.cameras(report, given, workloads.cameras_of(given.device, given.stands_in), form)
        case "kernels":
            return _kernels(report, given)
    raise ValueError(f"part: {part!r} is unknown")


def _ceilings(report: Report, given: Given) -> None:
    import torch

    from quire.kernels.bench.ceilings import measure

    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    report.figure("ceilings", measure(chip.ask(given.device).torch, dtype, 0.1)._asdict())


def _latencies(part: str, report: Report, given: Given, bench: workloads.Latencies) -> Iterator[Case]:
    with contextlib.ExitStack() as stack:
        rows = _started(given, bench, stack)
        yield Case(f"start for {part}", partial(_start, report, rows))
        for context in bench.contexts:
            name = f"itl_ms_at_{context}"
            run = partial(_figure, report, name, rows, lambda one, context=context: one.step_ms(1, context, 64))
            yield Case(name, run)
        yield Case("idle_share_alone", partial(_figure, report, "idle_share_alone", rows, lambda one: one.idle_alone()))
        for length in bench.first_tokens:
            name = f"ttft_ms_{length}"
            yield Case(name, partial(_figure, report, name, rows, lambda one, n=length: one.first_token_ms(n)))
        for batch in bench.batches:
            name = f"step_ms_{batch}_at_{bench.batch_context}"
            yield Case(name, partial(_figure, report, name, rows, lambda one, n=batch: one.batch_ms(n)))


def _throughput(report: Report, given: Given, bench: workloads.Bench) -> Iterator[Case]:
    with contextlib.ExitStack() as stack:
        rows = _started(given, bench, stack)
        yield Case("start for throughput", partial(_start, report, rows))
        for load in (*bench.throughput, bench.comparison):
            name = f"throughput_{load.name}"
            yield Case(name, lambda name=name, load=load: report.figure(name, rows().throughput(load)))


def _started(given: Given, bench: workloads.Latencies, stack: contextlib.ExitStack) -> Shared[Any]:
    """Rows of an engine that starts with the first of them, and ends with `stack`."""
    import models
    from engine import engine
    from engine_rows import Rows

    folder = models.write(given.folder / "model", bench.config)
    made = engine(folder, workloads.START_SECONDS, seed=given.seed, **bench.options)
    return Shared(lambda: Rows(stack.enter_context(made), bench, given.seed))


def _start(report: Report, rows: Shared[Any]) -> None:
    running = rows().running
    report.figure("ready_seconds", running.ready_seconds)
    report.figure("weight_bytes", running.facts.weight_bytes)
    report.figure("dtype", running.facts.dtype)


def _figure(report: Report, name: str, rows: Shared[Any], measure: Callable[[Any], float]) -> None:
    report.figure(name, measure(rows()))


def _peer(report: Report, given: Given, bench: workloads.Bench) -> None:
    import peers

    load = bench.comparison
    report.figure("transformers", peers.measure({
        "device": given.device, "config": bench.config, "seed": given.seed, "requests": load.requests,
        "input_len": load.input_len, "output_len": load.output_len,
    }))  # fmt: skip


TO_COMPILE = (
    ("linear",),
    ("norm_linear", "linear_f8", "linear_f8_blocks", "linear_int8"),
    ("gated_linear_f8", "gated_linear_f8_blocks", "gated_linear_int8"),
    ("linear_group_words", "route", "experts"),
    ("coded_experts",),
    ("paged_attention", "encoder_attention", "rope_in_place"),
    ("top_k_top_p", "sample", "best", "score"),
    ("rms_norm", "add_rms_norm", "rope_store_kv", "gated_activation", "penalize", "mask_tokens", "append_tokens"),
)
"""Operations that are compiled side by side."""


def _kernels(report: Report, given: Given) -> Iterator[Case]:
    if given.stands_in:
        chip.prepare_bias()
    from quire.kernels.bench.__main__ import BenchOptions, cases, measure
    from quire.kernels.bench.ceilings import measure as measure_ceilings
    from quire.kernels.bench.shapes import CPU, CUDA

    shapes = CUDA if given.device == "cuda" else CPU
    options = BenchOptions(device=given.device, seconds=1e-6 if given.stands_in else 0.05, seed=given.seed)
    cold_bytes = 0 if given.stands_in else shapes.cold_bytes  # one set of arguments is all there is to see
    device = chip.ask(given.device).torch
    ceilings = Shared(partial(measure_ceilings, device, shapes.layers[0].dtype, options.seconds))
    if given.device == "cuda":
        yield Case("compile side by side", partial(_compile, report, given))

    def row(case: Any) -> None:
        import torch

        with torch.inference_mode():
            report.figure(f"{case.operation}, {case.shape}", measure(case, options, ceilings(), cold_bytes))
        if given.device == "cuda":
            torch.cuda.empty_cache()

    listed = cases(shapes, given.device)
    for case in _fewer(listed) if given.stands_in else listed:
        if given.stands_in:  # what no kernel has written agrees with nothing
            case = replace(case, tolerance=None)
        yield Case(f"{case.operation}, {case.shape}", partial(row, case))


def _fewer(listed: Iterator[Any]) -> Iterator[Any]:
    """The first case of each operation and every eleventh behind it, so that its shapes and kinds take turns."""
    seen = Counter[str]()
    for case in listed:
        if seen[case.operation] % 11 == 0:
            yield case
        seen[case.operation] += 1


def _compile(report: Report, given: Given) -> None:
    """Run the slowest to compile side by side, unmeasured: Triton keeps what it compiled in files.

    What does not come in its time is named, and compiled when it is measured.
    """
    from concurrent.futures import ThreadPoolExecutor

    from quire.deploy.bench.report.errors import BenchError
    from quire.deploy.bench.report.measuring_process import measure

    chosen, begins = TO_COMPILE, 0.8 * COMPILE_SECONDS
    if given.stands_in:  # it compiles nothing: that two processes start and end is all there is to see
        chosen, begins = TO_COMPILE[:2], 1e-6

    def warm(operations: tuple[str, ...]) -> None:
        options = {"device": "cuda", "ops": operations, "seconds": 1e-6, "time_limit": begins}
        try:
            measure("quire.kernels.bench", options, timeout_seconds=COMPILE_SECONDS)
        except BenchError as error:
            if not isinstance(error.__cause__, subprocess.TimeoutExpired):
                raise
            report.figure(f"not compiled in time: {', '.join(operations)}", COMPILE_SECONDS)

    with ThreadPoolExecutor(len(chosen)) as pool:
        for waiting in [pool.submit(warm, operations) for operations in chosen]:
            waiting.result()
