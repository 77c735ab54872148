"""`python -m quire.kernels.bench '{"device": "cpu"}'` prints one JSON object; `quire bench` reports it."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import torch

from quire.kernels.bench import attention, coded_experts, experts, layers, quantized, sampling, towers
from quire.kernels.bench.case import Case
from quire.kernels.bench.ceilings import Ceilings
from quire.kernels.bench.ceilings import measure as measure_ceilings
from quire.kernels.bench.shapes import CPU, CUDA, Shapes
from quire.kernels.bench.stopwatch import milliseconds
from quire.kernels.chips import has_cuda

MOST_COPIES = 32
"""Sets of arguments a case rotates through: the smallest ones then fit a cache, as they do in real steps."""


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice of what is measured, and for how long."""

    device: Literal["cpu", "cuda"] = "cpu"
    ops: tuple[str, ...] = ()
    """Names of operations; empty: all."""
    seconds: float = 0.2
    """Measured for each case, ours and torch's each."""
    time_limit: float = math.inf
    """Seconds after which no further case is begun."""
    num_threads: int = 0
    """0: all cores this process may use."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.seconds > 0 or not self.time_limit > 0:
            raise ValueError(f"seconds, time_limit: must be positive, got {self.seconds}, {self.time_limit}")


def cases(shapes: Shapes, device_type: str) -> Iterator[Case]:
    """All of them; shapes that two layers share come once."""
    found: dict[tuple[str, str], Case] = {}
    for layer in shapes.layers:
        caches = (layer.dtype, torch.float8_e4m3fn) if device_type == "cuda" else (layer.dtype,)
        several = [
            *(case for tokens in shapes.tokens for case in layers.norms(layer, tokens)),
            *(case for tokens in shapes.tokens for cache in caches for case in layers.rotations(layer, tokens, cache)),
            *(case for tokens in shapes.tokens for case in layers.activations(layer, tokens)),
            *(case for tokens in shapes.tokens for case in layers.embeddings(layer, tokens)),
            *(case for tokens in shapes.linear_tokens for case in layers.linears(layer, tokens, device_type)),
            *(case for tokens in shapes.word_tokens for case in quantized.words(layer, tokens)),
            *(case for tokens in shapes.word_tokens for case in quantized.gated(layer, tokens)),
            *(case for tokens in shapes.block_tokens for case in quantized.blocks(layer, tokens)),
            *(attention.case(layer, batch) for batch in shapes.attention),
            *(case for rows in shapes.sampling_rows for case in sampling.cases(layer, rows)),
            *layers.steps(layer, shapes.decode_rows, device_type),
        ]
        for case in several:
            found.setdefault((case.operation, case.shape), case)
    yield from found.values()
    for layer_of_experts in shapes.experts:
        for tokens in shapes.expert_tokens:
            yield from experts.cases(layer_of_experts, tokens)
        for tokens in shapes.coded_expert_tokens:
            yield from coded_experts.cases(layer_of_experts, tokens)
    for tower in shapes.towers:
        yield from towers.cases(tower)


def measure(case: Case, options: BenchOptions, ceilings: Ceilings, cold_bytes: int) -> dict[str, Any]:
    """One row of the result, on the same arguments whatever ran before it.

    Raises RuntimeError when the operation and torch's form do not agree.
    """
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    footprint = max(case.footprint, case.cost.num_bytes)
    copies = min(MOST_COPIES, 1 + cold_bytes // footprint)
    pairs = [case.make(device) for _ in range(copies)]
    error = None
    if case.tolerance is not None:
        error = _disagreement(*pairs[0])
        if not error <= case.tolerance:
            raise RuntimeError(f"{case.operation}, {case.shape}: differs from torch by {error:.3g} of its size")
    ms = milliseconds([pair.ours for pair in pairs], device, options.seconds)
    peer_ms = milliseconds([pair.peer for pair in pairs], device, options.seconds, waits=case.peer_waits)
    rate = ceilings.int8_ops_per_second if case.int8 else ceilings.flops_per_second
    limit = case.cost.seconds(ceilings.copy_bytes_per_second, rate)
    return {
        "op": case.operation,
        "shape": case.shape,
        "ms": ms,
        "gb_s": case.cost.num_bytes / ms / 1e6,
        "tflop_s": case.cost.num_flops / ms / 1e9,
        "share_of_limit": limit * 1e3 / ms,
        "share_of_read": case.cost.num_bytes / ceilings.read_bytes_per_second * 1e3 / ms,
        "vs_torch": peer_ms / ms,
        "error": error,
        "cold": copies * case.cost.num_bytes > cold_bytes,
    }


def _disagreement(ours: Callable[[], object], peer: Callable[[], object]) -> float:
    """Relative error of the first against the second; what the first leaves unwritten is NaN and never agrees."""
    # unlike `use_deterministic_algorithms` it does not import the compiler of torch, which takes seconds
    torch.set_deterministic_debug_mode("warn")
    try:
        got = ours()
    finally:
        torch.set_deterministic_debug_mode("default")
    assert isinstance(got, torch.Tensor)
    got = got.clone()  # some forms write where the other one will
    wanted = peer()
    assert isinstance(wanted, torch.Tensor)
    difference = (got.double() - wanted.double()).norm()
    return float(difference / wanted.double().norm().clamp(min=1e-30))


def run(options: BenchOptions) -> dict[str, Any]:
    """Ceilings and a row for each case; `not_measured` names what the time limit left out, `failed` what broke."""
    shapes = CUDA if options.device == "cuda" else CPU
    known = {case.operation for case in cases(shapes, options.device)}
    if unknown := set(options.ops) - known:
        raise ValueError(f"--op: unknown {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    if options.device == "cuda" and not has_cuda():
        raise ValueError("--device: torch sees no CUDA device; use cpu")
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    device = torch.device(options.device)
    begun = time.perf_counter()
    ceilings = measure_ceilings(device, shapes.layers[0].dtype, options.seconds)
    rows, left_out, failed = [], [], []
    for case in cases(shapes, options.device):
        if options.ops and case.operation not in options.ops:
            continue
        if time.perf_counter() - begun > options.time_limit:
            left_out.append(f"{case.operation}, {case.shape}")
            continue
        try:
            rows.append(measure(case, options, ceilings, shapes.cold_bytes))
        except Exception as error:  # it is named, and the other cases are measured
            failed.append(f"{case.operation}, {case.shape}: {type(error).__name__}: {error}"[:500])
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "ceilings": ceilings._asdict(),
        "rows": rows,
        "not_measured": left_out,
        "failed": failed,
    }


def main(argv: list[str]) -> int:
    """Measure what the one JSON argument says."""
    try:
        with torch.inference_mode():
            print(json.dumps(run(msgspec.json.decode(argv[1] if len(argv) > 1 else "{}", type=BenchOptions))))
    except ValueError as error:  # what the user must change
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
