"""Checks of arguments: a wrong one is refused with its name before a kernel reads past the end of something."""

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
CACHES = (*FLOATS, torch.float8_e4m3fn, torch.int8)
"""Dtypes of a KV cache; of 8-bit integers a row is that of int8_rows.py."""


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Raise ValueError unless `tensor` has this shape (None: any size), one of `dtypes`, and lives on `device`."""
    actual = tensor.shape
    fits = len(actual) == len(shape)
    if fits:  # a plain loop: this runs a hundred times a step, and a generator would cost twice as much
        for want, got in zip(shape, actual):  # noqa: B905
            if want is not None and want != got:
                fits = False
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: expected shape [{wanted}], got {list(actual)}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: expected {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name}: expected on {device}, got {tensor.device}")


def check_contiguous(**tensors: torch.Tensor) -> None:
    """Raise ValueError, naming the first of `tensors` whose elements do not lie one after another."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: must be contiguous, got strides {list(tensor.stride())} of {list(tensor.shape)}")


def check_bias(bias: torch.Tensor | None, outputs: int, x: torch.Tensor) -> None:
    """Raise ValueError unless `bias` is None, or has a number for each of the outputs, like those of x."""
    if bias is not None:
        check_tensor("bias", bias, (outputs,), (x.dtype,), x.device)
        check_contiguous(bias=bias)
