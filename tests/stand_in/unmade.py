"""Operations of torch without their numbers: shapes and types are right, and a second of work is a tenth of one."""

import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

LARGE = 1 << 18
"""Elements from which on floats are not computed."""
_MAY_COPY = {"to", "contiguous", "reshape", "flatten", "type_as"}
"""Views, where the argument is already what is wanted."""


def is_large(args: Any, kwargs: Any) -> bool:
    """By the tensors among the arguments, or the size that is asked for."""
    leaves = tree_leaves((args, kwargs))
    sizes = [leaf for leaf in leaves if type(leaf) is int]
    given = sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return max(given, math.prod(sizes) if len(sizes) < 7 else 0) > LARGE


def unmade(func: Any, args: Any, kwargs: Any) -> Any:
    """What `func` returns; floats, and what comes from them, hold anything. What else is asked for is computed."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    looks = any(given.alias_info and not given.alias_info.is_write for given in func._schema.returns)
    if looks and func.overloadpacket.__name__ not in _MAY_COPY:
        return func(*args, **kwargs)
    if tensors and not any(tensor.is_floating_point() for tensor in tensors):
        return func(*args, **kwargs)
    written = _written(func, args, kwargs)
    if written:
        return written[0] if written[0].is_floating_point() else func(*args, **kwargs)
    try:
        results, is_view = _described(func, args, kwargs, tensors)
    except (NotImplementedError, RuntimeError):  # its shape hangs on its numbers
        return func(*args, **kwargs)
    whole = not tensors and not any(one.is_floating_point() for one in tree_leaves(results))
    return func(*args, **kwargs) if is_view or whole else tree_map(_filled, results)


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Arguments that the operation changes."""
    named = dict(zip((given.name for given in func._schema.arguments), args, strict=False)) | kwargs
    return [
        named[given.name]
        for given in func._schema.arguments
        if given.alias_info and given.alias_info.is_write and isinstance(named.get(given.name), torch.Tensor)
    ]


def _described(func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> tuple[Any, bool]:
    """The results without memory, and whether they are views of arguments."""
    described, options = tree_map(_without_memory, (args, kwargs))
    if "device" in options or not tensors:
        options = {**options, "device": "meta"}
    options.pop("generator", None)
    results = func(*described, **options)
    given = {one.untyped_storage()._cdata for one in tree_leaves((described, options)) if isinstance(one, torch.Tensor)}
    return results, any(
        one.untyped_storage()._cdata in given for one in tree_leaves(results) if isinstance(one, torch.Tensor)
    )


def _without_memory(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _filled(value: Any) -> Any:
    """Memory that is only promised, or zeros where that costs little or is used as a place."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made if value.is_floating_point() and value.numel() > LARGE else made.zero_()
