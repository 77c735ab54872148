"""Layers of experts whose matrices are quantized against their references, which run in float64 on the same device."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import word_layers
from kernel_checks import DTYPES, LIMITS
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.experts.coded import CodedMatrices, coded_experts, coded_experts_reference
from quire.kernels.experts.experts import ExpertGate
from quire.kernels.experts.route import NOWHERE

Draw = Callable[[int, int, int, torch.device, torch.dtype | None], CodedMatrices]
"""(experts, inputs, outputs, device, type of the biases if there are any) -> their matrices."""


class Layer(NamedTuple):
    """The sizes of a layer, and its gate."""

    experts: int
    k: int
    hidden: int
    inner: int
    gate: ExpertGate = "silu"
    is_biased: bool = False


QWEN3_30B, GPT_OSS = Layer(128, 8, 2048, 768), Layer(32, 4, 2880, 2880, "swigluoai", True)
FEW, SMALL = Layer(8, 2, 1024, 512, "gelu_tanh"), Layer(4, 2, 256, 256)
KINDS: dict[str, Draw] = {f"words {kind}": partial(word_layers.coded, kind) for kind in word_layers.KINDS}
CODES = f"words {word_layers.KINDS[0]}"
MXFP4 = f"words {word_layers.KINDS[6]}"
USUAL = {f"words {kind}" for kind in word_layers.USUAL}
"""Kinds of the checkpoints that people run: on layers as theirs are."""
COUNTS = (0, 1, 5, 100, 1500)


def coded_experts_of_layers(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Every kind in a layer of few experts, the usual ones in a layer of many. `small`: for a machine without a GPU."""
    layer = SMALL if small else FEW
    for name in KINDS:
        for dtype in DTYPES if name == CODES else (torch.bfloat16,):  # each is a kernel to compile
            yield Case(f"coded experts {name} {dtype}", partial(_experts, report, device, name, layer, dtype))
        if not small and name in USUAL:
            yield Case(
                f"coded experts {name} of many", partial(_experts, report, device, name, QWEN3_30B, torch.bfloat16)
            )
    if not small:
        yield Case("coded experts of gpt-oss", partial(_experts, report, device, MXFP4, GPT_OSS, torch.bfloat16))


def _experts(report: Report, device: torch.device, name: str, layer: Layer, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    bias, draw = dtype if layer.is_biased else None, KINDS[name]
    gate_up = draw(layer.experts, layer.hidden, 2 * layer.inner, device, bias)
    down = draw(layer.experts, layer.inner, layer.hidden, device, bias)
    half = layer.experts // 2
    own = _behind(gate_up, half), _behind(down, half)
    for count in COUNTS[:3] if layer is SMALL else COUNTS:
        detail = f"{name} {layer} {count}"
        x = torch.randn(count, layer.hidden, device=device, dtype=dtype)
        ids = torch.rand(count, layer.experts, device=device).argsort(1)[:, : layer.k].int().contiguous()
        ids[2::3] = NOWHERE
        ids[: count // 2, 0] = 1  # one expert has many, and some have none
        weights = torch.rand(count, layer.k, device=device) + 0.1  # smaller ones lose bits of a float16
        with poisoned():
            got = coded_experts(x, ids, weights, gate_up, down, layer.gate, 0)
            part = coded_experts(x, ids, weights, *own, layer.gate, half)
        wanted = coded_experts_reference(x.double(), ids, weights, gate_up, down, layer.gate, 0)
        report.number(f"coded experts {dtype}", row_error(got, wanted), 2 * LIMITS[dtype], detail)
        wanted = coded_experts_reference(x.double(), ids, weights, *own, layer.gate, half)
        report.number(f"coded experts of a rank {dtype}", row_error(part, wanted), 2 * LIMITS[dtype], detail)
        if count > 1:
            x[1] = torch.nan
            spoilt = coded_experts(x, ids, weights, gate_up, down, layer.gate, 0)
            others = [row for row in range(count) if row != 1]
            report.holds("coded experts: a NaN row shows", bool(spoilt[1].isnan().all()), detail)
            report.equal("coded experts: a NaN row stays in its row", spoilt[others], got[others], detail)
        if count and torch.cuda.is_available():
            _graph(report, x, ids, weights, gate_up, down, layer.gate, detail)


def _behind(matrices: CodedMatrices, first: int) -> CodedMatrices:
    """Those of the experts from `first` on."""
    return replace(matrices, each=matrices.each[first:])


def _graph(
    report: Report,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: CodedMatrices,
    down: CodedMatrices,
    kind: ExpertGate,
    detail: str,
) -> None:
    """A graph that was recorded of other tokens, which went elsewhere, does the same as the calls."""
    wanted = coded_experts(x, ids, weights, gate_up, down, kind, 0)
    given, where = torch.zeros_like(x), torch.zeros_like(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = coded_experts(given, where, weights, gate_up, down, kind, 0)
    given.copy_(x)
    where.copy_(ids)
    graph.replay()
    report.equal("coded experts: graphs equal eager calls", out, wanted, detail)
