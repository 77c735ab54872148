"""The matrices of a layer's experts as the device likes them best: made once, when they are complete."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation
from quire.kernels.linear.pack import unpack as unpack_one


def pack_experts_reference(gate_up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """gate_up [E, 2 * I, H] and down [E, H, I] -> what `experts` takes in their place, of the same dtype and size.

    Themselves where the device multiplies them as they are. Else both blocked, each matrix as `pack` blocks it, in the
    memory of what was given: [E, O / 16, I, 16], in bfloat16 [E, O / 16, I / 2, 16, 2].
    """
    return gate_up, down


def is_blocked(weight: torch.Tensor) -> bool:
    """True of the blocked forms."""
    return weight.dim() > 3


def unpack(weight: torch.Tensor) -> torch.Tensor:
    """The plain matrices [E, outputs, inputs] again."""
    if not is_blocked(weight):
        return weight
    whole = unpack_one(weight.flatten(0, 1))  # blocks of 16 outputs, whoever's
    return whole.view(weight.shape[0], -1, whole.shape[1])


def _check(gate_up: torch.Tensor, down: torch.Tensor) -> None:
    check_tensor("gate_up", gate_up, (None, None, None), FLOATS, gate_up.device)
    experts, wide, hidden = gate_up.shape
    check_tensor("down", down, (experts, hidden, wide // 2), (gate_up.dtype,), gate_up.device)
    check_contiguous(gate_up=gate_up, down=down)


pack_experts = Operation(pack_experts_reference, _check, {"cpu": "quire.kernels.cpu.experts.experts:pack_experts"})
