"""The limits of this machine: linear layers with cold weights in fp32, bf16 and int8, and device read bandwidth.

`python -m quire.worker.bench.roofline '{"rows": [1, 16]}'` prints one JSON object: the measured half of `quire bench
machine`.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import torch

from quire.kernels.chips import has_cuda
from quire.kernels.linear.linear import linear
from quire.kernels.linear.linear_int8 import linear_int8
from quire.kernels.linear.linear_int8 import pack as pack_int8
from quire.kernels.linear.pack import pack
from quire.proto.process.process_exit import exit_after

IN_FEATURES = 1024
OUT_FEATURES = 2816
READ_BYTES = 2 << 30


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rows: tuple[int, ...] = (1, 16, 128, 1024)
    device: Literal["cpu", "cuda"] = "cpu"
    seconds: float = 1.0
    """Measured for each linear and row count."""
    cold_bytes: int = 256 << 20
    """Bytes of weights cycled through: more than the caches hold, so that each pass reads its own from memory."""
    num_threads: int = 0
    """0: all cores this process may use."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.cold_bytes <= 0:
            raise ValueError(f"seconds and cold_bytes: must be positive, got {self.seconds} and {self.cold_bytes}")
        if any(rows < 1 for rows in self.rows):
            raise ValueError(f"rows: must be at least 1, got {self.rows}")


Linear = Callable[[int], object]
"""Runs the layer with weight number i."""


def fp32_linear(rows: int, count: int, device: torch.device) -> Linear:
    """`F.linear` with `count` weights."""
    weight = torch.randn(OUT_FEATURES, IN_FEATURES, device=device)
    weights = [weight.clone() for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES, device=device)
    return lambda index: torch.nn.functional.linear(x, weights[index])


def own_fp32_linear(rows: int, count: int, device: torch.device) -> Linear:
    """The layer that quire runs on the CPU in float32."""
    packed = pack(torch.randn(OUT_FEATURES, IN_FEATURES))
    weights = [packed.clone() for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES)
    return lambda index: linear(x, weights[index], None)


def onednn_fp32_linear(rows: int, count: int, device: torch.device) -> Linear:
    """oneDNN's linear on packed weights."""
    ops = torch.ops.mkldnn
    weights = [ops._reorder_linear_weight(torch.randn(OUT_FEATURES, IN_FEATURES)) for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES)
    return lambda index: ops._linear_pointwise(x, weights[index], None, "none", [], "")


def bf16_linear(rows: int, count: int, device: torch.device) -> Linear:
    """`F.linear` in bfloat16."""
    weights = [torch.randn(OUT_FEATURES, IN_FEATURES, device=device).bfloat16() for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES, device=device).bfloat16()
    return lambda index: torch.nn.functional.linear(x, weights[index])


def own_bf16_linear(rows: int, count: int, device: torch.device) -> Linear:
    """The layer that quire runs on the CPU in bfloat16."""
    packed = pack(torch.randn(OUT_FEATURES, IN_FEATURES).bfloat16())
    weights = [packed.clone() for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES).bfloat16()
    return lambda index: linear(x, weights[index], None)


def onednn_bf16_linear(rows: int, count: int, device: torch.device) -> Linear:
    """oneDNN's linear in bfloat16 on packed weights."""
    ops = torch.ops.mkldnn
    weight = torch.randn(OUT_FEATURES, IN_FEATURES).bfloat16()
    weights = [ops._reorder_linear_weight(weight) for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES).bfloat16()
    return lambda index: ops._linear_pointwise(x, weights[index], None, "none", [], "")


def int8_linear(rows: int, count: int, device: torch.device) -> Linear:
    """int8 x int8 -> int32 (`torch._int_mm`), the weight stored [out, in] as checkpoints do.

    On CUDA the operation wants more than 16 rows; fewer are padded, as an engine would have to.
    """
    weight = torch.randint(-127, 128, (OUT_FEATURES, IN_FEATURES), dtype=torch.int8, device=device)
    weights = [weight.clone().t() for _ in range(count)]
    run_rows = max(rows, 32) if device.type == "cuda" else rows
    x = torch.randint(-127, 128, (run_rows, IN_FEATURES), dtype=torch.int8, device=device)
    return lambda index: torch._int_mm(x, weights[index])


def own_int8_linear(rows: int, count: int, device: torch.device) -> Linear:
    """The layer that quire runs with `--quantization int8`: fp32 in and out, each row quantized in the call."""
    packed, scale = pack_int8(torch.randn(OUT_FEATURES, IN_FEATURES))
    weights = [packed.clone() for _ in range(count)]
    x = torch.randn(rows, IN_FEATURES)
    return lambda index: linear_int8(x, weights[index], scale, None)


def onednn_int8_linear(rows: int, count: int, device: torch.device) -> Linear:
    """oneDNN's product of 8-bit integers on packed weights, scaled to fp32; activations are quantized already."""
    ops = torch.ops.onednn
    weight = torch.randint(-127, 128, (OUT_FEATURES, IN_FEATURES), dtype=torch.int8)
    weights = [ops.qlinear_prepack(weight.clone(), [rows, IN_FEATURES]) for _ in range(count)]
    scale, zero = torch.rand(OUT_FEATURES), torch.zeros(OUT_FEATURES, dtype=torch.int32)
    x = torch.randint(1, 256, (rows, IN_FEATURES), dtype=torch.uint8)
    return lambda index: ops.qlinear_pointwise(
        x, 1.0, 128, weights[index], scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )


Maker = Callable[[int, int, torch.device], Linear]


def linears(device: torch.device) -> tuple[tuple[str, int, tuple[Maker, ...]], ...]:
    """Name, bytes of one weight element, and layers of which the fastest counts: this is what the machine allows."""
    if device.type == "cuda":
        return ("fp32", 4, (fp32_linear,)), ("bf16", 2, (bf16_linear,)), ("int8", 1, (int8_linear,))
    fp32 = (fp32_linear, own_fp32_linear, onednn_fp32_linear)
    bf16: tuple[Maker, ...] = (bf16_linear, own_bf16_linear)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        bf16 += (onednn_bf16_linear,)
    int8 = (int8_linear, own_int8_linear, onednn_int8_linear)
    return ("fp32", 4, fp32), ("bf16", 2, bf16), ("int8", 1, int8)


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
    if options.device == "cuda" and not has_cuda():
        sys.exit("--device: torch sees no CUDA device; use cpu")
    torch.manual_seed(options.seed)
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    device = torch.device(options.device)
    result: dict[str, object] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if options.device == "cuda":
        result["device"] = torch.cuda.get_device_name(device)
        result["read_bytes_per_s"] = read_bytes_per_second(device)
    for name, item_bytes, makers in linears(device):
        count = math.ceil(options.cold_bytes / (IN_FEATURES * OUT_FEATURES * item_bytes))
        for rows in options.rows:
            layers = [make(rows, count, device) for make in makers]
            rates = [operations_per_second(layer, count, rows, options.seconds, device) for layer in layers]
            result[f"{name}_{rows}"] = max(rates)
    return result


def main(argv: list[str]) -> int:
    print(json.dumps(measure(msgspec.json.decode(argv[1], type=MachineOptions))))
    return 0


if __name__ == "__main__":
    exit_after(lambda: main(sys.argv))  # taking torch apart takes half a second
