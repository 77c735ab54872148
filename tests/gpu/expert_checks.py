"""Layers of experts against their references, which run in float64 on the same device."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from kernel_checks import DTYPES, LIMITS
from report import Case, Report
from tensors import poisoned, row_error

from quire.kernels.experts.experts import experts, experts_reference
from quire.kernels.experts.route import NOWHERE, Routing, route, route_reference

Sizes = tuple[int, int, int, int]
"""Experts, experts of each token, hidden and inner size."""


def experts_of_layers(report: Report, device: torch.device, small: bool) -> Iterator[Case]:
    """The choice of experts, and both bodies of their blocks. `small`: for a machine without a GPU."""
    sizes: tuple[Sizes, ...] = (
        ((8, 2, 64, 48),) if small else ((128, 8, 2048, 768), (8, 2, 1024, 3584), (60, 4, 2048, 1408))
    )
    counts = (0, 1, 5) if small else (0, 1, 4, 16, 100, 1500)
    for size, count in itertools.product(sizes, counts):
        yield Case(f"route {size} {count}", partial(_route, report, device, size, count))
        for dtype in DTYPES:
            yield Case(f"experts {size} {dtype} {count}", partial(_experts, report, device, size, dtype, count))


def _route(report: Report, device: torch.device, sizes: Sizes, count: int) -> None:
    num_experts, k, *_ = sizes
    logits = torch.randn(count, num_experts, device=device)
    slots = torch.arange(count, device=device) - 1
    bias = torch.randn(num_experts, device=device)
    rules = {
        "softmax": (None, Routing(num_experts, k, renormalize=True)),
        "sigmoid": (bias, Routing(num_experts, k, "sigmoid", True, 2.5, num_groups=4, top_groups=2)),
    }
    for name, (added, routing) in rules.items():
        with poisoned():
            ids, weights = route(logits, added, slots, routing)
        wanted_ids, wanted = route_reference(logits, added, slots, routing)
        same = (ids.sort(1).values == wanted_ids.sort(1).values).all(1)  # but for scores that round alike
        report.number(f"route by {name}: others chosen", float((~same).double().mean()) if count else 0.0, 1e-3, name)
        report.number(f"route by {name}", row_error(weights[same], wanted[same].double()), 1e-5, f"{sizes} {count}")


def _experts(report: Report, device: torch.device, sizes: Sizes, dtype: torch.dtype, count: int) -> None:
    num_experts, k, hidden, inner = sizes
    x = torch.randn(count, hidden, device=device, dtype=dtype)
    gate_up = (torch.randn(num_experts, 2 * inner, hidden, device=device) / hidden**0.5).to(dtype)
    down = (torch.randn(num_experts, hidden, inner, device=device) / inner**0.5).to(dtype)
    ids = torch.rand(count, num_experts, device=device).argsort(1)[:, :k].int().contiguous()
    ids[2::3] = NOWHERE
    ids[: count // 2, 0] = 1  # one expert has many, and some have none
    weights = torch.rand(count, k, device=device)
    half = num_experts // 2
    detail = f"{sizes} {count}"
    with poisoned():
        got = experts(x, ids, weights, gate_up, down, "silu", 0)
    wanted = experts_reference(x.double(), ids, weights, gate_up.double(), down.double(), "silu", 0)
    report.number(f"experts {dtype}", row_error(got, wanted), LIMITS[dtype], detail)
    own = gate_up[half:].contiguous(), down[half:].contiguous()
    with poisoned():
        part = experts(x, ids, weights, *own, "silu", half)
    wanted = experts_reference(x.double(), ids, weights, *(one.double() for one in own), "silu", half)
    report.number(f"experts of a rank {dtype}", row_error(part, wanted), LIMITS[dtype], detail)
    if count > 1:
        x[1] = torch.nan
        spoilt = experts(x, ids, weights, gate_up, down, "silu", 0)
        others = [row for row in range(count) if row != 1]
        report.holds("experts: a NaN row shows", bool(spoilt[1].isnan().all()), detail)
        report.equal("experts: a NaN row stays in its row", spoilt[others], got[others], detail)
