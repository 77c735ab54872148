"""Norms of the library's modules that our kernel computes: those that make the same of random numbers."""

from copy import deepcopy
from typing import Any, Final

import torch
from torch import nn

from quire.kernels.linear.norm import rms_norm, rms_norm_reference

EPSILONS: Final = ("variance_epsilon", "eps", "epsilon")
"""The library's names for what is added to the mean of the squares."""
ROWS: Final = 3
CLOSE: Final = 1e-4


class Normed(nn.Module):
    """An RMS norm of the library's that our kernel computes, whose one tensor is the gain."""

    weight: torch.Tensor
    added: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape"""
        return rms_norm(x.contiguous(), self.weight, self.added)


def put_norms(trunk: nn.Module) -> None:
    """Let our kernel compute the norms that it knows. They keep their class, and the tensor that is loaded."""
    alike: dict[tuple[type[nn.Module], float], type[nn.Module] | None] = {}
    for module in trunk.modules():
        kind, added = type(module), _epsilon(module)
        if added is None:
            continue
        if (kind, added) not in alike:
            ours = type(kind.__name__, (Normed, kind), {})
            alike[kind, added] = ours if _is_alike(module, added) else None
        if (found := alike[kind, added]) is not None:
            module.__dict__["added"] = added
            module.__class__ = found


def _epsilon(module: nn.Module) -> float | None:
    """None: it holds something else than one gain, or does not say what it adds."""
    gain = module._parameters.get("weight")
    if gain is None or gain.ndim != 1 or len(module._parameters) > 1 or module._buffers or module._modules:
        return None
    found: Any = next((vars(module)[name] for name in EPSILONS if name in vars(module)), None)
    return found if isinstance(found, float) and found > 0.0 else None


def _is_alike(module: nn.Module, added: float) -> bool:
    """On the host, by the plain form: a machine with a GPU may have no compiled kernels for processors."""
    probe = deepcopy(module).to_empty(device="cpu").float()
    generator = torch.Generator().manual_seed(0)
    size = probe.get_parameter("weight").shape[0]
    gain, x = torch.randn(size, generator=generator), torch.randn((1, ROWS, size), generator=generator) * added**0.5
    probe._parameters["weight"] = nn.Parameter(gain, requires_grad=False)
    try:
        theirs = probe(x)
    except Exception:  # it takes more than one tensor
        return False
    return isinstance(theirs, torch.Tensor) and torch.allclose(theirs, rms_norm_reference(x, gain, added), CLOSE, CLOSE)
