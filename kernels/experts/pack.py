"""The matrices of a layer's experts as the device likes them best: made once, when they are complete."""

import torch

from quire.kernels.checks import FLOATS, check_contiguous, check_tensor
from quire.kernels.dispatch import Operation


def pack_experts_reference(gate_up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """gate_up [E, 2 * I, H] and down [E, H, I] -> what `experts` takes in their place, of the same dtype and size.

    Themselves where the device multiplies them as they are. Else both blocked, in the memory of what was given:
    [E, O / 32, I, 2, 16], in bfloat16 [E, O / 32, I / 2, 2, 16, 2]. Of the axis of two the first are outputs of the
    matrix' first half, gates, and the second those as far behind the middle, up: a matrix is read in one stream.
    """
    return gate_up, down


def is_blocked(weight: torch.Tensor) -> bool:
    """True of the blocked forms."""
    return weight.dim() > 3


def unpack(weight: torch.Tensor) -> torch.Tensor:
    """The plain matrices [E, outputs, inputs] again."""
    if not is_blocked(weight):
        return weight
    halves = weight.movedim(3, 1).movedim(3, 4)  # [E, 2, O / 32, 16, I], in bfloat16 [..., I / 2, 2]
    return halves.flatten(4).flatten(1, 3)


def _check(gate_up: torch.Tensor, down: torch.Tensor) -> None:
    check_tensor("gate_up", gate_up, (None, None, None), FLOATS, gate_up.device)
    experts, wide, hidden = gate_up.shape
    check_tensor("down", down, (experts, hidden, wide // 2), (gate_up.dtype,), gate_up.device)
    check_contiguous(gate_up=gate_up, down=down)


pack_experts = Operation(pack_experts_reference, _check, {"cpu": "quire.kernels.cpu.experts.experts:pack_experts"})
