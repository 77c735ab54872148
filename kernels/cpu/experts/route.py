"""The choice of experts for CPUs: a token after the other, in one pass over its logits for each expert."""

import torch

from quire.kernels.cpu.native import address, dtype_code, native
from quire.kernels.experts.route import Routing


def route(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    slot_mapping: torch.Tensor | None,
    routing: Routing,
    kept: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/experts/route.py."""
    rows, width = logits.shape
    ids = logits.new_empty((rows, routing.top_k), dtype=torch.int32) if kept is None else kept
    weights = logits.new_empty((rows, routing.top_k), dtype=torch.float32)
    native().quire_route(
        dtype_code("logits", logits),
        logits.data_ptr(),
        address(bias),
        address(slot_mapping),
        ids.data_ptr(),
        weights.data_ptr(),
        rows,
        width,
        routing.num_experts,
        routing.top_k,
        routing.scores == "sigmoid",
        routing.renormalize,
        routing.scale,
        routing.num_groups,
        routing.top_groups,
        torch.get_num_threads(),
    )
    return ids, weights
