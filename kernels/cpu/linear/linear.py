"""Linear layers for CPUs on packed weights: float32 and bfloat16 in tiles of our own, norm and activation joined to the
product; float16, and what does not divide into blocks, through oneDNN."""

import torch
from torch.nn.functional import linear as torch_linear

from quire.kernels.cpu.linear.activation import GATE_CODES, gated_activation
from quire.kernels.cpu.linear.norm import add_rms_norm, rms_norm
from quire.kernels.cpu.native import address, native
from quire.kernels.linear.activation import Gate
from quire.kernels.linear.pack import BLOCK, PAIR, is_blocked, num_outputs

ROW_BYTES = 8
"""Scratch memory of a row beside its packed inputs; see linear.hpp."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """See kernels/linear/pack.py. One packed copy serves every number of rows."""
    outputs, inputs = weight.shape
    if weight.dtype is torch.float32 and outputs % BLOCK == 0:
        return weight.view(-1, BLOCK, inputs).transpose(1, 2).contiguous()
    if weight.dtype is torch.bfloat16 and outputs % BLOCK == 0 and inputs % (PAIR * BLOCK) == 0:
        pairs = weight.view(torch.int32).view(-1, BLOCK, inputs // PAIR).transpose(1, 2).contiguous()
        return pairs.view(torch.bfloat16).view(-1, inputs // PAIR, BLOCK, PAIR)
    ops = torch.ops.mkldnn
    known = torch.backends.mkldnn.is_available() and (  # type: ignore[no-untyped-call]
        weight.dtype is torch.float32
        or (weight.dtype is torch.bfloat16 and ops._is_mkldnn_bf16_supported())
        or (weight.dtype is torch.float16 and ops._is_mkldnn_fp16_supported())
    )
    if not known:  # oneDNN has no kernel for this dtype on this processor, torch does
        return weight
    packed: torch.Tensor = ops._reorder_linear_weight(weight)
    return packed


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """See kernels/linear/linear.py."""
    if is_blocked(weight):
        return _multiply(x, None, None, None, 0.0, weight, bias, None)
    if not weight.is_mkldnn:
        return torch_linear(x, weight, bias)
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See kernels/linear/linear.py."""
    if is_blocked(weight) and (gate is None or weight.shape[0] % 2 == 0):  # else gate and up share a block
        total = x if residual is None else torch.empty_like(x)
        return _multiply(x, residual, total, norm_weight, eps, weight, bias, gate), total
    if residual is None:
        normed, total = rms_norm(x, norm_weight, eps), x
    else:
        normed, total = add_rms_norm(x, residual, norm_weight, eps)
    wide = linear(normed, weight, bias)
    return (wide if gate is None else gated_activation(wide, gate)), total


def _multiply(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    total: torch.Tensor | None,
    norm_weight: torch.Tensor | None,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
) -> torch.Tensor:
    rows, inputs = x.shape
    outputs = num_outputs(weight)
    out = x.new_empty((rows, outputs if gate is None else outputs // 2))
    scratch = torch.empty(rows * (4 * inputs + ROW_BYTES), dtype=torch.uint8)
    library = native()
    (library.quire_linear if x.dtype is torch.float32 else library.quire_linear_bf16)(
        x.data_ptr(),
        address(residual),
        address(norm_weight),
        address(total),
        rows,
        inputs,
        eps,
        weight.data_ptr(),
        address(bias),
        outputs,
        GATE_CODES[gate],
        out.data_ptr(),
        scratch.data_ptr(),
        torch.get_num_threads(),
    )
    return out
