"""Layers of experts of 8-bit floats and integers against their references, on the same device."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import eight_layers
import torch
from kernel_checks import DTYPES, LIMITS
from quantized_checks import ROUNDED, rounds
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.experts.coded import CodedMatrices, coded_experts, coded_experts_reference
from quire.kernels.experts.route import NOWHERE

Sizes = tuple[int, int, int, int]
"""Experts, experts of each token, hidden and inner size."""
COUNTS = (0, 1, 5, 16, 100, 1500)
MANY: Sizes = (128, 8, 2048, 768)
Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor, CodedMatrices, CodedMatrices]


def experts_of_eights(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """Every kind in a layer of few experts, and in one of many. `small`: for a machine without a GPU."""
    few: Sizes = (4, 2, 144, 80) if small else (8, 2, 1024, 512)
    for kind in eight_layers.KINDS:
        for dtype in DTYPES:
            yield Case(f"experts of {kind} {dtype}", partial(_experts, report, device, kind, few, dtype))
        if not small:
            yield Case(f"experts of {kind}, many", partial(_experts, report, device, kind, MANY, torch.bfloat16))


def _experts(report: Report, device: torch.device, kind: eight_layers.Kind, sizes: Sizes, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    num_experts, k, hidden, inner = sizes
    bias = dtype if kind in eight_layers.USUAL else None
    gate_up = eight_layers.coded(kind, num_experts, hidden, 2 * inner, device, bias)
    down = eight_layers.coded(kind, num_experts, inner, hidden, device, bias)
    for count in COUNTS:
        x = torch.randn(count, hidden, device=device, dtype=dtype)
        ids = torch.rand(count, num_experts, device=device).argsort(1)[:, :k].int().contiguous()
        ids[2::3] = NOWHERE
        ids[: count // 2, 0] = 1  # one expert has many, and some have none
        drawn = x, ids, torch.rand(count, k, device=device), gate_up, down
        _against(report, kind, drawn, f"{kind} {sizes} {count}")
        if count and device.type == "cuda":
            _graph(report, drawn, f"{kind} {sizes} {count}")


def _against(report: Report, kind: eight_layers.Kind, drawn: Drawn, detail: str) -> None:
    """The layer, that of a rank, and a row of NaN. What is rounded between products has neighbouring codes."""
    x, ids, weights, gate_up, down = drawn
    rounded = kind[1] != "none" and (kind[0] == "int8" or rounds(x.device))
    limit, half = ROUNDED if rounded else LIMITS[x.dtype], len(down.each) // 2
    with poisoned():
        got = coded_experts(*drawn, "silu", 0)
    for first in (0, half):
        own = [replace(one, each=one.each[first:]) for one in (gate_up, down)]
        meant = own if rounded else [replace(one, activations="none") for one in own]
        with poisoned():
            part = coded_experts(x, ids, weights, *own, "silu", first)
        wanted = coded_experts_reference(x, ids, weights, *meant, "silu", first)
        report.number(f"experts of {kind} {x.dtype}", row_error(part, wanted.double()), limit, f"{detail} {first}")
    if len(x) > 1:
        spoilt = x.clone()
        spoilt[1] = torch.nan
        out = coded_experts(spoilt, *drawn[1:], "silu", 0)
        others = [row for row in range(len(x)) if row != 1]
        report.holds("experts of eights: a NaN row shows", bool(out[1].isnan().all()), detail)
        report.equal("experts of eights: a NaN row stays in its row", out[others], got[others], detail)


def _graph(report: Report, drawn: Drawn, detail: str) -> None:
    """A graph that was recorded of other tokens, which went elsewhere, does the same as the calls."""
    x, ids, *rest = drawn
    wanted = coded_experts(*drawn, "silu", 0)
    given, where = torch.zeros_like(x), torch.zeros_like(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = coded_experts(given, where, *rest, "silu", 0)
    given.copy_(x)
    where.copy_(ids)
    graph.replay()
    report.equal("experts of eights: graphs equal eager calls", out, wanted, detail)
