"""Where tensors would lie: those of the chip are memory of the host that says it is the chip's.

What a GPU refuses or waits for is refused here: operations on tensors of two places, the host's view of the chip's
memory, and, in the debug mode of synchronization, whatever makes the host wait.
"""

from collections.abc import Sequence
from types import MethodWrapperType
from typing import Any

import numpy as np
import torch
import torch_cuda
from torch import Tensor
from torch.overrides import TorchFunctionMode

CHIP, HOST = torch.device("cuda", 0), torch.device("cpu")
_DEVICE, _IS_CUDA = Tensor.device, Tensor.is_cuda
_DESCRIBING = {
    Tensor.data_ptr, Tensor.dim, Tensor.element_size, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.numel,
    Tensor.size, Tensor.storage_offset, Tensor.stride,
}  # fmt: skip
"""Three calls of four: they answer alike wherever a tensor lies, and make none."""
_ACROSS = {
    Tensor.copy_, Tensor.to, Tensor.cpu, Tensor.__getitem__, Tensor.__setitem__,
    torch._has_compatible_shallow_copy_type,
}  # fmt: skip
"""What takes tensors of two places."""
_PLAIN = {Tensor, torch.nn.Parameter, torch.nn.Buffer}
_WAITING = {
    Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.nonzero, torch.nonzero, torch.masked_select, torch.equal,
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__,
}  # fmt: skip


def is_placed(tensor: Tensor) -> bool:
    """Whether it would lie on the chip: a mark of its memory, which views and parameters share."""
    return getattr(tensor.untyped_storage(), "placed", False)


class OnHost(TorchFunctionMode):
    """Tensors for the chip are made on the host, and remembered; there is no pinned memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if type(func) is MethodWrapperType and func.__name__ in ("__get__", "__set__"):
            return _attribute(func, args)
        if func in _DESCRIBING:
            return func(*args, **(kwargs or {}))
        if func is torch.device:  # names a place, and makes nothing
            return func(*args, **(kwargs or {}))
        if func is Tensor.pin_memory:
            return args[0].clone()
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        tensors = [leaf for value in values for leaf in _tensors(value)]
        placed = [tensor for tensor in tensors if is_placed(tensor)]
        _refuse(func, tensors, placed, args, kwargs)
        asked = next(filter(None, map(_device, values)), None)
        if asked is not None:
            args, kwargs = tuple(map(_here, args)), {name: _here(value) for name, value in kwargs.items()}
        if "pin_memory" in kwargs:
            kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        result = func(*args, **kwargs)
        if func is Tensor.cpu:
            asked = HOST
        if asked is None:
            return _marked(result, tensors) if placed else result
        on_chip = asked.type == "cuda"
        if isinstance(result, Tensor) and tensors and is_placed(result) != on_chip:
            result = result.clone()  # there it would be another tensor
        return _marked(result, tensors) if on_chip else result


def _attribute(func: Any, args: Any) -> Any:
    attribute = func.__self__
    if attribute is _DEVICE:
        return CHIP if is_placed(args[0]) else func(*args)
    return is_placed(args[0]) if attribute is _IS_CUDA else func(*args)


def _refuse(func: Any, tensors: list[Tensor], placed: list[Tensor], args: Any, kwargs: Any) -> None:
    """Raise what CUDA would."""
    name = getattr(func, "__name__", func)
    if torch_cuda.sync_debug_mode() == "error" and _waits(func, tensors, placed, args, kwargs):
        raise RuntimeError(f"{name}: called a synchronizing CUDA operation")
    if not placed:
        return
    if func is Tensor.numpy:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    if func not in _ACROSS and any(one.dim() and not is_placed(one) for one in tensors):
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but found cuda:0 and cpu")


def _waits(func: Any, tensors: list[Tensor], placed: list[Tensor], args: Any, kwargs: Any) -> bool:
    """A copy across that is not told otherwise, an index that needs one, what the host must know."""
    asked = [device for device in map(_device, (*args, *kwargs.values())) if device is not None]
    if func is torch.tensor:
        return any(device.type == "cuda" for device in asked)
    if func is Tensor.copy_ or func is Tensor.to:
        places = {is_placed(one) for one in tensors} | {device.type == "cuda" for device in asked}
        return len(places) > 1 and not (kwargs.get("non_blocking") or args[-1] is True)
    if not placed or (func is not Tensor.__setitem__ and func is not Tensor.__getitem__):
        return bool(placed) and func in _WAITING
    indices = [one for one in (args[1] if isinstance(args[1], tuple) else (args[1],)) if _picks(one)]
    if any(not is_placed(torch.as_tensor(one)) for one in indices):
        return True  # the index is copied
    masks = [one for one in indices if one.dtype in (torch.bool, torch.uint8)]
    if func is Tensor.__getitem__:
        return bool(masks)  # how many there are is asked
    of_host = not isinstance(args[2], Tensor) or not is_placed(args[2])
    # one number under one mask fills; elsewhere it is copied, or the mask is counted
    return (of_host and len(masks) < len(indices)) or (bool(masks) and not (of_host and len(indices) == 1))


def _picks(index: Any) -> bool:
    """Rather than cuts: a tensor with places, a list, an array."""
    return index.dim() > 0 if isinstance(index, Tensor) else isinstance(index, list | np.ndarray)


def _marked(result: Any, tensors: list[Tensor]) -> Any:
    """The result, with its memory marked as the chip's, unless that is an argument's."""
    known = {one.untyped_storage()._cdata for one in tensors}
    for one in _tensors(result):
        storage = one.untyped_storage()
        if storage._cdata not in known:
            storage.placed = True
    return result


def _tensors(value: Any) -> Sequence[Tensor]:
    """Without those of classes of their own, which lie nowhere."""
    if type(value) in _PLAIN:
        return (value,)
    return [one for one in value if type(one) in _PLAIN] if isinstance(value, list | tuple) else ()


def _device(value: Any) -> torch.device | None:
    if type(value) is str:
        return torch.device(value) if value in ("cuda", "cpu") else None
    return value if type(value) is torch.device else None


def _here(value: Any) -> Any:
    """The host instead of the chip."""
    device = _device(value)
    return HOST if device is not None and device.type == "cuda" else value
