"""What was measured, against targets, against floors at the ceilings of the same run, against transformers."""

from typing import Any

import workloads
from chip import STAND_IN
from summary import Summary

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def ratios(summary: Summary, device: str) -> dict[str, Any]:
    """For the document; printed too."""
    bench = workloads.of(device, device == STAND_IN)
    engine = summary.figures("latencies", "throughput")
    engine |= _slope(bench, engine)
    encoded, served = summary.figures("tower"), summary.figures("cameras", "cameras_fp8")
    kernels = {name: row for name, row in summary.figures("kernels").items() if isinstance(row, dict)}
    peer = summary.figures("transformers").get("transformers")
    found = _targets(bench, engine) | _throughputs(bench, engine)
    ceilings = summary.figures("ceilings").get("ceilings")
    if ceilings and "dtype" in engine:
        _floors(bench, engine, ceilings, found)
    if ceilings:
        found |= _encoding(encoded, ceilings)
    compared = engine.get(f"throughput_{bench.comparison.name}")
    if compared and peer:
        rate = compared["output_tokens_per_s"] / peer["output_tokens_per_s"]
        found["against transformers"] = _row(rate, bench.comparison.target, rate >= bench.comparison.target)
    experts = {part: summary.figures(part) for part in workloads.EXPERTS}
    for part, figures in experts.items():
        latencies = workloads.experts_of(part, device, device == STAND_IN)
        figures |= _slope(latencies, figures)
        found |= {f"{part}: {name}": row for name, row in _targets(latencies, figures).items()}
    if not summary.compares:
        for row in found.values():
            row.pop("met", None)
    _show(kernels, found | _served(served))
    return {"engine": engine, "experts": experts, "kernels": list(kernels.values()), "transformers": peer,
            "ceilings": ceilings, "tower": encoded, "cameras": served, "ratios": found}  # fmt: skip


def _row(measured: float, target: float, met: bool) -> dict[str, float]:
    return {"measured": measured, "target": target, "met": met}


def _slope(bench: workloads.Latencies, engine: dict[str, Any]) -> dict[str, float]:
    """Of a token's time over the context, by least squares, and the time at none."""
    import numpy as np

    points = [
        (context, engine[f"itl_ms_at_{context}"]) for context in bench.contexts if f"itl_ms_at_{context}" in engine
    ]
    if len(points) < 2:
        return {}
    slope, intercept = np.polyfit(*zip(*points, strict=True), 1)
    return {"itl_ms_short": float(intercept), "itl_ms_per_context_token": float(slope)}


def _targets(bench: workloads.Latencies, engine: dict[str, Any]) -> dict[str, dict[str, float]]:
    most = {"itl_ms_short": bench.itl_target, "itl_ms_per_context_token": bench.slope_target}
    most |= {f"ttft_ms_{length}": target for length, target in bench.first_tokens.items()}
    most |= {f"step_ms_{batch}_at_{bench.batch_context}": target for batch, target in bench.batches.items()}
    return {name: _row(engine[name], limit, engine[name] <= limit) for name, limit in most.items() if name in engine}


def _throughputs(bench: workloads.Bench, engine: dict[str, Any]) -> dict[str, dict[str, float]]:
    found = {}
    for load in bench.throughput:
        name = f"throughput_{load.name}"
        if name in engine:
            rate, idle = engine[name]["output_tokens_per_s"], engine[name]["idle_share"]
            found[name] = _row(rate, load.target, rate >= load.target)
            found[f"idle_share {load.name}"] = _row(idle, workloads.IDLE_TARGET, idle <= workloads.IDLE_TARGET)
    return found


def _floors(
    bench: workloads.Bench, engine: dict[str, Any], ceilings: dict[str, float], found: dict[str, dict[str, float]]
) -> None:
    from engine_rows import floors

    rates = ceilings["copy_bytes_per_second"], ceilings["flops_per_second"]
    step, prompt = floors(bench, engine["weight_bytes"], *rates, ITEM_BYTES[engine["dtype"]])
    limits = {f"itl_ms_at_{context}": step(1, context) for context in bench.contexts}
    limits |= {f"ttft_ms_{length}": prompt(length) for length in bench.first_tokens}
    context = bench.batch_context
    limits |= {f"step_ms_{batch}_at_{context}": step(batch, context) for batch in bench.batches}
    for name, limit in limits.items():
        if name in engine:
            found.setdefault(name, {"measured": engine[name]})["share_of_limit"] = limit / engine[name]


def _encoding(encoded: dict[str, Any], ceilings: dict[str, float]) -> dict[str, dict[str, float]]:
    """Share of the rate of a large product that towers reach."""
    found = {}
    for name, row in encoded.items():
        if "flops_per_s" in row:
            share = row["flops_per_s"] / ceilings["flops_per_second"]
            target = workloads.IMAGES.target
            found[f"{name}: of the product's rate"] = _row(share, target, share >= target) | {
                "ms": row["ms"], "images_per_s": row["images_per_s"],
            }  # fmt: skip
    return found


def _served(served: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The numbers of each run of a server, for the console."""
    runs = {name: row for name, row in served.items() if isinstance(row, dict)}
    return {
        name: {key: value for key, value in row.items() if isinstance(value, int | float)} for name, row in runs.items()
    }


def _show(kernels: dict[str, dict[str, Any]], found: dict[str, dict[str, float]]) -> None:
    if kernels:
        print(f"{'operation':<66} {'ms':>9} {'GB/s':>8} {'TFLOP/s':>8} {'of limit':>8} {'vs torch':>8}")
    for name, row in kernels.items():
        print(f"{name[:66]:<66} {row['ms']:>9.4f} {row['gb_s']:>8.0f} {row['tflop_s']:>8.1f} "
              f"{row['share_of_limit']:>8.3f} {row['vs_torch']:>8.2f}")  # fmt: skip
    for name, row in found.items():
        print(f"{name:<32} " + "  ".join(f"{key} {value:.4g}" for key, value in row.items()))
