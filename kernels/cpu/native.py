"""Loads the compiled CPU kernels, for the best instruction set this processor runs.

The library is plain C functions over raw pointers, called through ctypes, which releases the interpreter's lock. torch
is imported first on purpose: its OpenMP runtime is then the one the library finds, so both share one pool of threads.
"""

import ctypes
import functools
from contextvars import ContextVar
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch

INSTRUCTION_SETS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
"""In the order of portable.cpp; every x86-64 or arm64 processor runs "portable"."""

REMEDY = "install quire with GCC 12 or newer, or clang, at hand (in a checkout: make venv), or run on a GPU"

DTYPES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float8_e4m3fn: 3,
    torch.int8: 4,
    torch.float8_e8m0fnu: 5,
}
"""The library's numbers of the dtypes; see dtype.hpp."""


class NumTokens(ctypes.c_int64):
    """The number of a step's tokens."""


class NumRows(ctypes.c_int64):
    """The number of a step's rows."""


_KINDS: dict[str, type] = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_int64,
    "t": NumTokens,
    "r": NumRows,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}

# Every exported function that returns nothing, and its arguments as the headers declare them, a letter for each.
_DECLARED = {
    "quire_add": "ippsptsi",
    "quire_add_rms_norm": "ippppptsfi",
    "quire_add_rms_norm_wide": "ippppptsfi",
    "quire_add_shared": "ipppsptsi",
    "quire_all_gather": "ppspi",
    "quire_all_reduce": "piptsi",
    "quire_best": "ipsssppi",
    "quire_count_inputs": "ipppptsi",
    "quire_embed_groups": "ippsiiipipspssssspti",
    "quire_embed_shard": "ppsssipti",
    "quire_encoder_attention": "ipppsssfi",
    "quire_experts_f8": "ippptssisspsiippi",
    "quire_experts_groups": "ippptssisspiiiissiippi",
    "quire_experts_inner": "ippptssssppippi",
    "quire_experts_int8": "ippptssisspippi",
    "quire_experts_outer": "ippptssssppppi",
    "quire_experts_sum": "ippptsspi",
    "quire_gated_activation": "iipspsptsi",
    "quire_linear": "pppptsfppsippi",
    "quire_linear_bf16": "pppptsfppsippi",
    "quire_linear_f8": "ipppptsfppspsipippi",
    "quire_linear_groups": "ipppptsfpiiipipspspsiippi",
    "quire_linear_int8": "ipppptsfpppsippi",
    "quire_mask_tokens": "psspspsi",
    "quire_pack_f8": "psspi",
    "quire_paged_attention": "ppppppppppprtssssssffiiisp",
    "quire_part_norm": "ippppptssssfi",
    "quire_part_squares": "ipptsssi",
    "quire_penalize": "psspspssppppppi",
    "quire_prepare_inputs": "psppspsrsppssptpppp",
    "quire_replay": "pssi",
    "quire_put_columns": "ptspsi",
    "quire_query_factors": "pssfpt",
    "quire_rms_norm": "ippptssfi",
    "quire_rms_norm_wide": "ippptssfi",
    "quire_rope_angles": "psppfpptsi",
    "quire_rope_in_place": "ipppssssi",
    "quire_rope_store_kv": "iippppppppppptssssfi",
    "quire_rope_store_kv_wide": "iippppppppppptssssfi",
    "quire_route": "ippppptsssiifssi",
    "quire_sample": "ipsssppppppi",
    "quire_scale": "ipfptsi",
    "quire_scale_tokens": "ipppstsi",
    "quire_scale_weights": "ippppts",
    "quire_score": "ipssspsppi",
    "quire_sort_by_expert": "ptsssppp",
    "quire_top_k_top_p": "ipssspppppi",
    "quire_widen": "ipptsi",
    "quire_with_values": "ipssspsfpti",
}

ARGUMENTS: dict[str, list[type]] = {
    function: [_KINDS[letter] for letter in letters] for function, letters in _DECLARED.items()
}
"""Types of each function's arguments."""


class NativeLibraryMissingError(ImportError):
    """The compiled CPU kernels are not there."""


class UnsupportedDtypeError(TypeError):
    """A CPU kernel has no form for the dtype of an argument."""


recorder: ContextVar[Any] = ContextVar("recorder", default=None)
"""Stand-in for the library that notes the calls of this thread; None: they are made."""


def native() -> Any:
    """The library for this processor, or what records its calls.

    Raises NativeLibraryMissingError when it has not been compiled.
    """
    recording = recorder.get()
    return library() if recording is None else recording


@functools.cache
def library() -> ctypes.CDLL:
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
        for function, arguments in ARGUMENTS.items():
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
