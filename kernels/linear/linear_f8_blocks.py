"""Linear layers on weights of 8-bit floats (e4m3), with a float32 scale for each block of 128 outputs and 128 inputs.

Sums of one block of inputs are taken in float32, then scaled and added up in the order of the inputs.
"""

import torch

from quire.kernels.checks import check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear import linear_f8
from quire.kernels.linear.activation import Gate, check_gate, check_gated, gated_activation_reference, halves
from quire.kernels.linear.linear_f8 import BLOCK, Activations, check_packed, quantize, unpack
from quire.kernels.linear.norm import check_residual_norm, residual_norm_reference

SIDE = 128
"""Outputs and inputs that share a scale; inputs of a token, too."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """weight e4m3 [O, I] -> what these operations take in its place: as linear_f8.py packs it.

    Raises ValueError unless O is a multiple of 16, and for another dtype or shape.
    """
    if weight.shape[0] % BLOCK:
        raise ValueError(
            f"weight: scales of blocks want a multiple of {BLOCK} outputs, got {weight.shape[0]}; pad them"
        )
    return linear_f8.pack(weight)


def _outputs(weight: torch.Tensor) -> int:
    """Outputs of a packed weight, which in two dimensions is the codes as they are."""
    return weight.shape[0] * (1 if weight.dim() == 2 else BLOCK)


def linear_f8_blocks_reference(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, activations: Activations
) -> torch.Tensor:
    """`x @ W.T + bias`, W = codes * scale of their block, where `weight` is `pack(codes)`.

    x [T, I], scale float32 [ceil(O / 128), ceil(I / 128)], bias [O] -> [T, O]. activations "token" rounds x to codes
    with a scale for each token and 128 inputs (`linear_f8.quantize`); with "none" the product is that of x itself.
    """
    outputs, inputs = _outputs(weight), x.shape[1]
    wide = unpack(weight, outputs, inputs).float()
    out = torch.zeros((x.shape[0], outputs), dtype=torch.float32, device=x.device)
    for block, start in enumerate(range(0, inputs, SIDE)):
        columns = slice(start, start + SIDE)
        scales = scale[:, block].repeat_interleave(SIDE)[:outputs].expand(x.shape[0], outputs)
        rows = x[:, columns].float()
        if activations == "token":
            codes, row_scale = quantize(rows, None)
            rows, scales = codes.float(), row_scale[:, None] * scales
        out += (rows @ wide[:, columns].T) * scales
    return (out if bias is None else out + bias.float()).to(x.dtype)


def norm_linear_f8_blocks_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    activations: Activations,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`linear_f8_blocks(rms_norm(total))` and `total = residual + x`, with the gated activation if asked for.

    Like `norm_linear`: x and residual [T, I] -> ([T, O], or with a gate [T, O / 2]; total [T, I]).
    """
    normed, total = residual_norm_reference(x, residual, norm_weight, eps)
    wide = linear_f8_blocks_reference(normed, weight, scale, bias, activations)
    return (wide if gate is None else gated_activation_reference(wide, gate)), total


def gated_linear_f8_blocks_reference(
    x: torch.Tensor,
    kind: Gate,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
) -> torch.Tensor:
    """`linear_f8_blocks(gated_activation(x, kind))`: x [T, 2 * I] -> [T, O], as `gated_linear_f8` does of rows."""
    return linear_f8_blocks_reference(gated_activation_reference(x, kind), weight, scale, bias, activations)


def _check(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, activations: Activations
) -> None:
    outputs = _outputs(weight)
    check_packed(x, weight, outputs, bias)
    check_tensor("scale", scale, (-(-outputs // SIDE), -(-x.shape[1] // SIDE)), (torch.float32,), x.device)
    check_contiguous(scale=scale)
    if activations not in ("token", "none"):
        raise ValueError(f"activations: must be token or none where weights have scales of blocks, got {activations!r}")


def _check_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm_weight: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate: Gate | None,
    activations: Activations,
) -> None:
    _check(x, weight, scale, bias, activations)
    check_residual_norm(x, residual, norm_weight, eps)
    check_gate(gate, _outputs(weight))


def _check_gated(
    x: torch.Tensor,
    kind: Gate,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    activations: Activations,
) -> None:
    check_gated(x, kind)
    _check(halves(x), weight, scale, bias, activations)


linear_f8_blocks = Operation(
    linear_f8_blocks_reference,
    _check,
    {
        "cpu": "quire.kernels.cpu.linear.linear_f8:linear_f8_blocks",
        "cuda": "quire.kernels.gpu.quantized.linear_f8_blocks:linear_f8_blocks",
    },
)
norm_linear_f8_blocks = Operation(
    norm_linear_f8_blocks_reference,
    _check_norm,
    {
        "cpu": "quire.kernels.cpu.linear.linear_f8:norm_linear_f8_blocks",
        "cuda": "quire.kernels.gpu.quantized.linear_f8_blocks:norm_linear_f8_blocks",
    },
)
gated_linear_f8_blocks = Operation(
    gated_linear_f8_blocks_reference,
    _check_gated,
    {"cuda": "quire.kernels.gpu.quantized.linear_f8_blocks:gated_linear_f8_blocks"},
)
