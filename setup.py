"""Compiles the CPU kernels, once per instruction set; everything else about the package is in pyproject.toml.

The libraries are loaded with ctypes: no headers but the C++ compiler's own are needed. Without a compiler the package
installs all the same, and says so when a CPU kernel is first called.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup

SOURCES = Path("kernels/cpu/cpp")
# the arithmetic of NaN and infinity stays; what is given up is only errno, traps and the order of a * b + c
FLAGS = ["-O3", "-std=c++17", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wno-maybe-uninitialized", "-g0"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mprefer-vector-width=512"]
AVX512_BF16 = [*AVX512, "-mavx512bf16", "-mavx512vbmi"]
AMX = [*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"]

INSTRUCTION_SETS: dict[str, list[str]] = {"portable": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS |= {"avx2": AVX2, "avx512": AVX512, "avx512_bf16": AVX512_BF16, "amx": AMX}

setup(
    ext_modules=[
        Extension(
            f"quire.kernels.cpu.native_{name}",
            [str(SOURCES / f"{name}.cpp")],
            depends=["setup.py", *sorted(map(str, SOURCES.glob("*.hpp")))],
            extra_compile_args=[*FLAGS, *flags],
            extra_link_args=["-fopenmp"],
            language="c++",
            optional=True,
        )
        for name, flags in INSTRUCTION_SETS.items()
    ],
    options={"build_ext": {"parallel": True}},  # a compiler for each processor: a set takes up to a minute
)
