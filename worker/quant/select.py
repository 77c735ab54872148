"""Selects the scheme of each form: a scheme is the form on a device."""

from collections.abc import Mapping
from typing import Final

import torch

from quire.kernels.gpu.chip import has_eight_bits
from quire.worker.quant.dense import DenseScheme
from quire.worker.quant.f8_blocks import F8BlocksScheme
from quire.worker.quant.f8_rows import F8RowsScheme
from quire.worker.quant.form import Dense, F8Blocks, F8Rows, Form, Groups
from quire.worker.quant.group_words import GroupWordsScheme
from quire.worker.quant.groups import GroupsScheme
from quire.worker.quant.int8 import Int8Scheme
from quire.worker.quant.plan import Plan, refuse_device
from quire.worker.quant.scheme import Scheme, SchemeFor

GROUPS_SCHEMES: Final[Mapping[str, type[GroupsScheme]]] = {"cpu": GroupsScheme, "cuda": GroupWordsScheme}
"""Schemes of groups of codes by the type of the device, which reads them in a layout of its own."""


def schemes_of(plan: Plan, device: torch.device) -> SchemeFor:
    """The scheme at each path. Raises ModelError where the device has no fast form of a product."""
    if (error := refuse_device(plan, device.type)) is not None:
        raise error
    served = plan.on(device.type)
    return lambda path: scheme_of(served.form(path), device.type)


def kept_activations(plan: Plan, capability: int | None) -> str:
    """A sentence, where a GPU of this compute capability does not round activations as the plan says; else empty."""
    rounds = any(isinstance(form, F8Rows | F8Blocks) and form.activations != "none" for form in plan.kinds)
    if not rounds or capability is None or has_eight_bits(capability):
        return ""
    return (
        f"compute capability {capability / 10} has no products of 8-bit floats (8.9 has): weights stay as small, and "
        "activations are multiplied as they are"
    )


def scheme_of(form: Form, device_type: str) -> Scheme:
    """Equal forms have equal schemes."""
    if isinstance(form, Dense):
        return DenseScheme()
    if isinstance(form, F8Rows):
        return F8RowsScheme(form.activations, form.bound, form.stored)
    if isinstance(form, F8Blocks):
        return F8BlocksScheme(form.activations)
    if isinstance(form, Groups):
        return GROUPS_SCHEMES[device_type](form)
    return Int8Scheme(form.stored)
