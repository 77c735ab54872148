"""Weights as a GGUF file means them, out of what its checkpoint hands out."""

WHOLE = (slice(None), slice(None))


def meant(checkpoint, name):
    """A weight in float32: the codes of each group times its scale, less what is taken off."""
    if name in checkpoint.names():
        return checkpoint.read(name, WHOLE[: len(checkpoint.shape(name))]).float()
    module = name.removesuffix(".weight")
    codes, scale = checkpoint.read(f"{module}.codes", WHOLE), plain(checkpoint, f"{module}.scale", f"{module}.unit")
    groups = codes.float().unflatten(1, (scale.shape[1], -1))
    if f"{module}.minima" in checkpoint.names():
        least = plain(checkpoint, f"{module}.minima", f"{module}.minima_unit")
        return (groups * scale[..., None] - least[..., None]).flatten(1)
    half = 1 << int(codes.max()).bit_length() - 1  # every file has codes above the middle
    return ((groups - half) * scale[..., None]).flatten(1)


def plain(checkpoint, levels, unit):
    """Scales or minima; times their units where they have some."""
    found = checkpoint.read(levels, WHOLE).float()
    if unit not in checkpoint.names():
        return found
    units = checkpoint.read(unit, WHOLE).float()
    return found * units.repeat_interleave(found.shape[1] // units.shape[1], 1)
