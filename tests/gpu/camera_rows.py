"""The cameras' rows: a whole server of Qwen3-VL-8B's shape under requests with an image each, no two alike."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import models
from report import Case, Given, Lost, Report
from server import Server, server
from shared import Shared
from workloads import Cameras

from quire.deploy.bench.report.errors import BenchError

START_SECONDS = 100.0
LOAD_SECONDS = 75.0
KEPT = (
    "requests_per_s", "output_tokens_per_s", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99", "e2e_ms_p50",
    "e2e_ms_p99", "input_tokens", "completed", "errors", "seconds", "slo_share", "frames_in_time_share",
    "cameras_sustained",
)  # fmt: skip
"""Of what `quire bench serve` says."""
OFFERED = 0.75
"""Of the requests a second that the server answers at most, by all cameras."""


def cameras(report: Report, given: Given, load: Cameras, form: str) -> Iterator[Case]:
    """`form`: of the weights, auto or fp8; with fp8 keys and values are 8-bit floats, too."""
    small = given.device == "cpu"
    rates: list[float] = []
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"device": given.device, "seed": given.seed, **load.options}
        if form != "auto":
            options |= {"quantization": form, "kv_cache_dtype": "fp8"}
        folder = partial(models.write_seeing, given.folder / form, small, **load.text)
        running = Shared(lambda: stack.enter_context(server(folder(), START_SECONDS, **options)))
        yield Case(f"start, {form}", lambda: report.figure(f"{form}: ready_seconds", running().ready_seconds))

        def closed() -> None:
            found = _loaded(running(), given, load, load.closed)
            rates.append(found["requests_per_s"])
            report.figure(f"{form}: as many as it answers", found)

        def preset() -> None:
            interval = load.num_cameras / (OFFERED * rates[-1]) if rates else load.interval
            found = _loaded(running(), given, load, (*load.preset, "--interval", f"{interval:.2f}"))
            report.figure(f"{form}: {load.num_cameras} cameras", {"interval": interval, **found})

        yield Case(f"as many as it answers, {form}", closed)
        yield Case(f"cameras, {form}", preset)


def _loaded(running: Server, given: Given, load: Cameras, arguments: tuple[str, ...]) -> dict[str, Any]:
    size = "--image-size", load.image_size, "--vocab-size", str(load.vocab_size), "--seed", str(given.seed)
    try:
        found = running.load((*arguments, *size), LOAD_SECONDS)
    except BenchError as error:
        raise Lost(str(error)) from error
    figures = found.get("figures", found)
    return {name: figures[name] for name in KEPT if name in figures}
