"""Operations of torch without their numbers: shapes and types are right, and what would be numbers are zeros.

Whole numbers are computed: tables, lengths and places decide what is run. Where there are more of them than in any
table they are codes, or the bits of floats, and zeros as well.
"""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

LARGE = 1 << 14
"""Elements from which on floats, and what comes from them, are not computed."""
MOST_OF_A_TABLE = 1 << 21
"""Elements up to which whole numbers are."""
PRODUCTS = {"mm", "addmm", "bmm", "linear", "_int_mm", "_scaled_mm", "_scaled_mm_v2"}
"""Are never computed."""
_MAY_COPY = {"to", "contiguous", "reshape", "flatten", "type_as"}
"""Views, where the argument is already what is wanted."""


@functools.cache
def looks(func: Any) -> bool:
    """Whether it returns a view of an argument."""
    return any(given.alias_info and not given.alias_info.is_write for given in func._schema.returns)


def is_large(args: Any, kwargs: Any) -> bool:
    """By the tensors among the arguments, or the size that is asked for."""
    given, sizes = 0, []
    for value in (*args, *kwargs.values()):
        for leaf in value if isinstance(value, list | tuple) else (value,):
            if isinstance(leaf, torch.Tensor):
                given += leaf.numel()
            elif type(leaf) is int:
                sizes.append(leaf)
    return given > LARGE or (0 < len(sizes) < 7 and math.prod(sizes) > LARGE)


def unmade(func: Any, args: Any, kwargs: Any) -> Any:
    """What `func` returns, in zeros that cost no memory until they are written."""
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if str(kwargs.get("device")) == "meta" or any(one.is_meta for one in tensors):  # it has no numbers
        return func(*args, **kwargs)
    whole = tensors and all(map(_is_table, tensors)) and name not in PRODUCTS
    if whole or (name not in _MAY_COPY and looks(func)):
        return func(*args, **kwargs)
    if written := _written(func, args, kwargs):
        return func(*args, **kwargs) if _is_table(written[0]) else written[0]
    try:
        results, is_view = _described(func, args, kwargs, tensors)
    except (NotImplementedError, RuntimeError):  # its shape hangs on its numbers
        return func(*args, **kwargs)
    if is_view or (not tensors and _is_table(results)):
        return func(*args, **kwargs)
    return tree_map(_zeros, results)


def _is_table(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.numel() <= MOST_OF_A_TABLE


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


def _zeros(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    places = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    memory = np.zeros(max(1, places) * value.dtype.itemsize, np.uint8)  # torch would write them at once
    return torch.from_numpy(memory).view(value.dtype).as_strided(value.shape, value.stride())
