"""The figures of `quire bench control`, and the proof that every token the worker drew reached a client."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise

from quire.deploy.bench.report.errors import BenchError
from quire.deploy.bench.report.measuring_process import samples
from quire.deploy.bench.report.report import Figure, Outcome, percentile, percentiles

OPTIONS = ("http", "streams", "step_ms", "seconds", "frontends", "clients", "prompt_len", "output_len")

Measured = Mapping[str, object]


def busy_seconds(starts: Sequence[float], ends: Sequence[float], window: tuple[float, float]) -> float:
    """Seconds of the window that the steps [start, end] cover; they do not overlap."""
    low, high = window
    return sum(max(0.0, min(end, high) - max(start, low)) for start, end in zip(starts, ends, strict=True))


def check_delivery(clients: Sequence[Measured], device: Measured) -> tuple[int, int]:
    """Tokens produced and delivered, when they are equal and every stream was whole. Raises `BenchError` otherwise."""
    failures = [str(failure) for client in clients for failure in _list(client, "failures")]
    produced, delivered = int(str(device["tokens"])), total(clients, "delivered")
    if failures or delivered != produced:
        raise BenchError(
            f"{produced} tokens were produced and {delivered} delivered; {len(failures)} streams failed, "
            f"the first: {failures[0] if failures else 'none'}"
        )
    return produced, delivered


def total(clients: Sequence[Measured], name: str) -> int:
    return sum(int(str(client[name])) for client in clients)


def _list(measured: Measured, name: str) -> list[object]:
    value = measured[name]
    return value if isinstance(value, list) else [value]


def outcome(
    args: argparse.Namespace,
    clients: Sequence[Measured],
    newcomers: Measured,
    device: Measured,
    cpu: Mapping[str, float],
    window: tuple[float, float],
) -> Outcome:
    """`cpu` holds CPU seconds of each process within the window. Raises `BenchError` when tokens are missing.

    Rates and gaps are of `clients`, the steady streams.
    """
    produced, delivered = check_delivery([*clients, newcomers], device)
    tokens, seconds = total(clients, "tokens_in_window"), window[1] - window[0]
    if not tokens:
        raise BenchError("no token arrived in the window; lengthen --warmup or --seconds")
    gaps = [gap for client in clients for gap in samples(client, "gap_ms")]
    starts, ends = samples(device, "starts"), samples(device, "ends")
    figures: dict[str, Figure] = {
        "tokens_per_s": tokens / seconds,
        **percentiles("itl_ms", gaps, (50, 99)),
        **percentiles("ttft_ms", [ms for client in clients for ms in samples(client, "ttft_ms")], (50, 99)),
        **percentiles("newcomer_ttft_ms", samples(newcomers, "ttft_ms"), (50, 90)),
        "device_idle_share": 1.0 - busy_seconds(starts, ends, window) / seconds,
        "cpu_s_per_1k_tokens": {name: spent / tokens * 1e3 for name, spent in cpu.items()},
        "cpu_cores_used": sum(cpu.values()) / seconds,
        "tokens_per_message": tokens / total(clients, "messages_in_window"),
        "rows_per_step": produced / len(starts),
        "step_ms_p50": percentile([(later - earlier) * 1e3 for earlier, later in pairwise(starts)], 50),
        "produced_tokens": produced,
        "delivered_tokens": delivered,
        "requests": total(clients, "requests"),
    }
    return Outcome(figures, {name: getattr(args, name) for name in OPTIONS}, args.seed, {"itl_ms": gaps})
