"""Loads the compiled CPU kernels, for the best instruction set this processor runs.

The library is plain C functions over raw pointers, called through ctypes, which releases the interpreter's lock. torch
is imported first on purpose: its OpenMP runtime is then the one the library finds, so both share one pool of threads.
"""

import ctypes
import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

INSTRUCTION_SETS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
"""In the order of portable.cpp; every x86-64 or arm64 processor runs "portable"."""

REMEDY = "install quire with GCC 12 or newer, or clang, at hand (in a checkout: make venv), or run on a GPU"

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float8_e4m3fn: 3}
"""The library's numbers of the dtypes; see dtype.hpp."""

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float

_LINEAR: list[type] = [*[_POINTER] * 4, _SIZE, _SIZE, _FLOAT, *[_POINTER] * 2, _SIZE, _INT, *[_POINTER] * 2, _INT]

# Every exported function that returns nothing, and its arguments as the headers declare them.
_ARGUMENTS: dict[str, list[type]] = {
    "quire_gated_activation": [_INT, _INT, _POINTER, _POINTER, _SIZE, _SIZE, _INT],
    "quire_paged_attention": [*[_POINTER] * 11, *[_SIZE] * 8, _FLOAT, _FLOAT, _INT, _INT, _INT],
    "quire_linear": _LINEAR,
    "quire_linear_bf16": _LINEAR,
    "quire_linear_int8": [
        _INT,
        *[_POINTER] * 4,
        _SIZE,
        _SIZE,
        _FLOAT,
        *[_POINTER] * 3,
        _SIZE,
        _INT,
        *[_POINTER] * 2,
        _INT,
    ],
    "quire_rope_store_kv": [_INT, _INT, *[_POINTER] * 11, *[_SIZE] * 5, _FLOAT, _INT],
    "quire_rms_norm": [_INT, *[_POINTER] * 3, _SIZE, _SIZE, _FLOAT, _INT],
    "quire_add_rms_norm": [_INT, *[_POINTER] * 5, _SIZE, _SIZE, _FLOAT, _INT],
}


class NativeLibraryMissingError(ImportError):
    """The compiled CPU kernels are not there."""


class UnsupportedDtypeError(TypeError):
    """A CPU kernel has no form for the dtype of an argument."""


@functools.cache
def native() -> ctypes.CDLL:
    """The library for this processor, chosen once. Raises NativeLibraryMissingError when it has not been compiled."""
    return load(instruction_set())


@functools.cache
def instruction_set() -> str:
    """Name of the instruction set in use, of those that run here the one measured as the fastest."""
    return runnable_sets()[int(load("portable").quire_fastest_instruction_set())]


@functools.cache
def runnable_sets() -> tuple[str, ...]:
    """The instruction sets this processor runs and the package was compiled for, the best one last."""
    best = int(load("portable").quire_best_instruction_set())
    runnable = INSTRUCTION_SETS[: best + 1]
    for name in runnable:
        load(name)  # a slower one in its place would be a silent loss
    return runnable


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """The library compiled for the instruction set `name`."""
    path = _path(name)
    if not path.exists():
        raise NativeLibraryMissingError(f"the CPU kernels are not compiled ({path.name} is missing): {REMEDY}")
    try:
        library = ctypes.CDLL(str(path))
        for function, arguments in _ARGUMENTS.items():
            getattr(library, function).argtypes = arguments
            getattr(library, function).restype = None
    except (OSError, AttributeError) as error:  # no library, or one of other sources
        raise NativeLibraryMissingError(f"the CPU kernels do not load: {error}; {REMEDY}") from error
    return library


def dtype_code(name: str, tensor: torch.Tensor) -> int:
    """The library's number for the dtype of the argument called `name`. Raises UnsupportedDtypeError."""
    code = DTYPES.get(tensor.dtype)
    if code is None:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise UnsupportedDtypeError(f"{name}: CPU kernels know {known}, got {tensor.dtype}; convert it")
    return code


def address(tensor: torch.Tensor | None) -> int | None:
    """Address of its elements; None, which C reads as null, for an argument that is not given."""
    return None if tensor is None else tensor.data_ptr()


def _path(name: str) -> Path:
    return Path(__file__).with_name(f"native_{name}{EXTENSION_SUFFIXES[0]}")
