"""The choice of experts and their blocks, on random data, beside what torch offers: an expert after the other."""

from collections.abc import Iterator

import torch
from torch.nn import functional

from quire.kernels.bench import cost
from quire.kernels.bench.case import Case, Pair, normal
from quire.kernels.bench.shapes import Experts
from quire.kernels.experts.experts import experts
from quire.kernels.experts.pack import pack_experts
from quire.kernels.experts.route import Routing, route, route_reference


def cases(layer: Experts, tokens: int) -> Iterator[Case]:
    """`route` and `experts`; tokens are dealt out evenly, so that as many experts are reached as can be."""
    size, reached = layer.dtype.itemsize, min(layer.experts, tokens * layer.k)
    sizes = f"{layer.k} of {layer.experts}"

    def chosen(device: torch.device) -> Pair:
        logits, routing = normal(device, tokens, layer.experts, dtype=layer.dtype), Routing(layer.experts, layer.k)
        return Pair(
            lambda: route(logits, None, None, routing)[1], lambda: route_reference(logits, None, None, routing)[1]
        )

    def made(device: torch.device) -> Pair:
        x = normal(device, tokens, layer.hidden, dtype=layer.dtype)
        ids = (torch.arange(tokens * layer.k, device=device) % layer.experts).int().view(tokens, layer.k)
        weights = torch.rand(tokens, layer.k, device=device)
        gate_up = normal(device, layer.experts, 2 * layer.inner, layer.hidden, dtype=layer.dtype) / layer.hidden**0.5
        down = normal(device, layer.experts, layer.hidden, layer.inner, dtype=layer.dtype) / layer.inner**0.5

        packed = pack_experts(gate_up.clone(), down.clone())

        def peer() -> torch.Tensor:
            out = torch.zeros_like(x)
            for expert in range(layer.experts):
                token, place = (ids == expert).nonzero(as_tuple=True)
                gate, up = functional.linear(x[token], gate_up[expert]).chunk(2, -1)
                result = functional.linear(functional.silu(gate) * up, down[expert])
                out.index_add_(0, token, result * weights[token, place, None].to(x.dtype))
            return out

        return Pair(lambda: experts(x, ids, weights, *packed, "silu", 0), peer)

    bound = cost.route(tokens, layer.experts, layer.k, size)
    yield Case("route", f"{tokens} x {sizes}", bound, chosen)
    bound = cost.experts(tokens, layer.k, reached, layer.hidden, layer.inner, size, size)
    held = 3 * layer.experts * layer.hidden * layer.inner * size
    shape = f"{tokens} x {layer.hidden} -> {layer.inner}, {sizes}"
    yield Case("experts", shape, bound, made, peer_waits=True, footprint=held)
