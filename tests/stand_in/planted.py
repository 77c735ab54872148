"""Launches that a chip refuses, and one it does not: prints one JSON object, chip -> name -> what the stand-in said."""

import json
import sys
from typing import Any

import torch
import triton
import triton.language as tl

from quire.kernels.gpu.aot.stand_in import CHIPS, standing_in


@triton.jit
def product(a, b, out, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, size, K):
        left = tl.load(a + rows[:, None] * size + start + inner[None, :])
        right = tl.load(b + columns[:, None] * size + start + inner[None, :])
        total = tl.dot(left, right.T, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total)


@triton.jit(do_not_specialize=["count"])
def fill(out, count, value: tl.constexpr):
    tl.store(out + tl.program_id(0) % count, value)


@triton.jit
def first_row_of(table, width):
    """Wrong for a width of 1, which is then no tensor but a constant."""
    tl.store(table, width.to(tl.int64))


@triton.jit
def scratch(out, size, N: tl.constexpr):
    descriptor = tl.make_tensor_descriptor(out, [size], [1], [N])
    descriptor.store([0], tl.zeros([N], tl.float32))


def multiply(size: int, num_stages: int) -> None:
    a, b = torch.zeros((2, size, 512), dtype=torch.bfloat16)
    product[1,](a, b, torch.zeros((size, size)), 512, M=size, N=size, K=64, num_stages=num_stages)


ATTEMPTS = {
    "sound": lambda: multiply(64, 3),
    "shared memory": lambda: multiply(128, 6),
    "warps": lambda: fill[1,](torch.zeros(4), 4, value=1.0, num_warps=64),
    "grid": lambda: fill[1, 65536](torch.zeros(4), 4, value=1.0),
    "empty grid": lambda: fill[0,](torch.zeros(4), 4, value=1.0),
    "type": lambda: fill[1,](torch.zeros(4, dtype=torch.complex64), 4, value=1.0),
    "not a tensor": lambda: fill[1,](object(), 4, value=1.0),
    "number too large": lambda: fill[1,](torch.zeros(4), 1 << 70, value=1.0),
    "no scratch": lambda: scratch[1,](torch.zeros(64), 64, N=64),
    "one": lambda: first_row_of[1,](torch.zeros(4, dtype=torch.int64), 1),
    "two": lambda: first_row_of[1,](torch.zeros(4, dtype=torch.int64), 2),
}


def answers(capability: int) -> dict[str, Any]:
    found = {}
    with standing_in(CHIPS[capability]) as launches:
        for name, attempt in ATTEMPTS.items():
            before = len(launches)
            try:
                attempt()
                found[name] = f"{len(launches) - before} launched"
            except Exception as error:  # what it was is the answer
                found[name] = f"{type(error).__name__}: {str(error).splitlines()[-1]}"
        found["noted"] = {name: str(getattr(launches[0], name)) for name in launches[0].__slots__}
    return found


if __name__ == "__main__":
    print(json.dumps({capability: answers(int(capability)) for capability in sys.argv[1:]}))
