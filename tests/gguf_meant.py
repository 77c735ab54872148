"""Weights as a GGUF file means them, out of what its checkpoint hands out."""

from pathlib import Path

import torch

from quire.worker.weights.gguf.blocks import LAYOUTS, codes, minima, minima_unit, scale, two_bits, unit
from quire.worker.weights.gguf.files import read_model
from quire.worker.weights.gguf.names import checkpoint_name

WHOLE = (slice(None),) * 3
LEVELS = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0])
HALVES = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]) / 2
TABLES = {"IQ4_NL": LEVELS, "IQ4_XS": LEVELS, "MXFP4": HALVES}
"""Type -> what its codes stand for, as the format's own package has them: a zero has no sign."""


def meant(checkpoint, name):
    """A weight in float32: the codes of each group, or what they stand for, times its scale, less what is taken off."""
    if name in checkpoint.names():
        return checkpoint.read(name, WHOLE[: len(checkpoint.shape(name))]).float()
    module = name.removesuffix(".weight")
    codes = checkpoint.read(f"{module}.codes", WHOLE[: len(checkpoint.shape(f"{module}.codes"))])
    scale = plain(checkpoint, f"{module}.scale", f"{module}.unit")
    groups = codes.float().unflatten(-1, (scale.shape[-1], -1))
    if (kind := type_of(checkpoint, name)) in TABLES:
        return (TABLES[kind][groups.int()] * scale[..., None]).flatten(-2)
    if f"{module}.minima" in checkpoint.names():
        least = plain(checkpoint, f"{module}.minima", f"{module}.minima_unit")
        return (groups * scale[..., None] - least[..., None]).flatten(1)
    half = 1 << int(codes.max()).bit_length() - 1  # every file has codes above the middle
    return ((groups - half) * scale[..., None]).flatten(1)


def type_of(checkpoint, name):
    model = read_model(Path(checkpoint.origin))
    names = {checkpoint_name(stored, model.metadata): tensor.type.name for stored, tensor in model.tensors.items()}
    return names[name]


def plain(checkpoint, levels, unit):
    """Scales or minima; times their units where they have some."""
    found = checkpoint.read(levels, WHOLE[: len(checkpoint.shape(levels))]).float()
    if unit not in checkpoint.names():
        return found
    units = checkpoint.read(unit, WHOLE[:2]).float()
    return found * units.repeat_interleave(found.shape[1] // units.shape[1], 1)


def of_blocks(raw, kind):
    """The weight that the form of groups means by blocks uint8 [O, blocks, bytes] of a type; of Q2_K what is read."""
    if kind == "Q2_K":
        return two_bits(raw)
    layout = LAYOUTS[kind]
    q, s = codes(raw, layout).float().unflatten(1, (-1, layout.size)), scale(raw, layout).float()
    repeated = layout.block // layout.size
    if layout.has_units:
        s = s * unit(raw, layout).float().repeat_interleave(repeated, 1)
    s = s[..., None]
    if layout.has_minima:
        m = minima(raw, layout).float()
        m = m * minima_unit(raw).float().repeat_interleave(repeated, 1) if layout.has_units else m
        return (q * s - m[..., None]).flatten(1)
    if layout.table:
        return (TABLES[kind][q.int()] * s).flatten(1)
    return ((q - 2 ** (layout.bits - 1)) * s).flatten(1)
