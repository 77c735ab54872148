"""What this machine's arithmetic allows: linear layers with cold weights in fp32 and int8, and device read bandwidth.

`python -m quire.worker.machine '{"rows": [1, 16]}'` prints one JSON object: the measured half of `quire bench machine`.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import torch

IN_FEATURES = 1024
OUT_FEATURES = 2816
COLD_BYTES = 256 << 20
"""Weights cycled through, so that each pass finds its own outside the caches."""
READ_BYTES = 2 << 30


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rows: tuple[int, ...] = (1, 16, 128, 1024)
    device: Literal["cpu", "cuda"] = "cpu"
    seconds: float = 1.0
    """Measured for each linear and row count."""
    num_threads: int = 0
    """0: all cores this process may use."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"seconds: must be positive, got {self.seconds}")
        if any(rows < 1 for rows in self.rows):
            raise ValueError(f"rows: must be at least 1, got {self.rows}")


Linear = Callable[[int], object]
"""Runs the layer with weight number i."""


def fp32_linear(rows: int, device: torch.device) -> tuple[Linear, int]:
    """`F.linear` and how many different weights it has."""
    count = math.ceil(COLD_BYTES / (IN_FEATURES * OUT_FEATURES * 4))
    weights = [torch.randn(OUT_FEATURES, IN_FEATURES, device=device) for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES, device=device)
    return lambda index: torch.nn.functional.linear(x, weights[index]), count


def int8_linear(rows: int, device: torch.device) -> tuple[Linear, int]:
    """int8 x int8 -> int32 (`torch._int_mm`), the weight stored [out, in] as checkpoints do.

    On CUDA the operation wants more than 16 rows; fewer are padded, as an engine would have to.
    """
    count = math.ceil(COLD_BYTES / (IN_FEATURES * OUT_FEATURES))
    weights = [
        torch.randint(-127, 128, (OUT_FEATURES, IN_FEATURES), dtype=torch.int8, device=device).t() for _ in range(count)
    ]
    run_rows = max(rows, 32) if device.type == "cuda" else rows
    x = torch.randint(-127, 128, (run_rows, IN_FEATURES), dtype=torch.int8, device=device)
    return lambda index: torch._int_mm(x, weights[index]), count


LINEARS = {"fp32": fp32_linear, "int8": int8_linear}


def operations_per_second(layer: Linear, count: int, rows: int, seconds: float, device: torch.device) -> float:
    """Multiplications and additions per second of the fastest round over all weights, in about `seconds`."""
    best, deadline = math.inf, time.perf_counter() + seconds
    for index in range(count):
        layer(index)
    while best == math.inf or time.perf_counter() < deadline:
        _settle(device)
        begin = time.perf_counter()
        for index in range(count):
            layer(index)
        _settle(device)
        best = min(best, time.perf_counter() - begin)
    return 2.0 * rows * IN_FEATURES * OUT_FEATURES * count / best


def read_bytes_per_second(device: torch.device) -> float:
    """Device memory read by a sum over float32, best of ten passes."""
    x = torch.ones(READ_BYTES // 4, device=device)
    best = math.inf
    for _ in range(10):
        _settle(device)
        begin = time.perf_counter()
        x.sum()
        _settle(device)
        best = min(best, time.perf_counter() - begin)
    return READ_BYTES / best


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(options: MachineOptions) -> dict[str, object]:
    torch.manual_seed(options.seed)
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    device = torch.device(options.device)
    result: dict[str, object] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if options.device == "cuda":
        result["device"] = torch.cuda.get_device_name(device)
        result["read_bytes_per_s"] = read_bytes_per_second(device)
    for name, make in LINEARS.items():
        for rows in options.rows:
            layer, count = make(rows, device)
            result[f"{name}_{rows}"] = operations_per_second(layer, count, rows, options.seconds, device)
    return result


def main(argv: list[str]) -> int:
    print(json.dumps(measure(msgspec.json.decode(argv[1], type=MachineOptions))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
