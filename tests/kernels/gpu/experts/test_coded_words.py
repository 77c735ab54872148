"""Experts in words of codes in the interpreter, against each expert's matrix as it is meant, wherever tokens go."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.experts.coded import Coded, CodedMatrices, coded_experts_reference
from quire.kernels.experts.route import NOWHERE
from quire.kernels.gpu.experts.coded import coded_experts
from quire.kernels.linear.linear_group_words import SUPERBLOCK, pack_words

pytestmark = pytest.mark.usefixtures("poisoned_results")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
KINDS = {
    "AWQ": (4, 64, F16, "zeros", ""),
    "int4 made here": (4, 32, BF16, "zeros", ""),
    "symmetric": (4, None, F16, "none", ""),
    "minima": (4, 32, F16, "minima", ""),
    "8 bits": (8, 32, F16, "none", ""),
    "NVFP4": (4, 16, E4M3, "none", "e2m1"),
    "MXFP4": (4, 32, E8M0, "none", "e2m1"),
    "Q4_K": (4, 32, torch.int8, "minima", ""),
    "Q5_K": (8, 32, torch.int8, "minima", ""),
    "Q6_K": (8, 16, torch.int8, "none", ""),
    "IQ4_NL": (4, 32, F16, "none", "iq4_nl"),
    "IQ4_XS": (4, 32, torch.int8, "none", "iq4_nl"),
}
"""Bits of a code in memory, inputs of a group (None: all), type of the scales, what is beside them, and the table."""


def matrices(kind, seed, count, outputs, inputs, dtype, biased):
    """The matrix of each expert, weights of about 1 / sqrt(inputs)."""
    bits, size, scales, beside, table = KINDS[kind]
    generator = torch.Generator().manual_seed(seed)
    shape, spread = (inputs // (size or inputs), outputs), 1 / inputs**0.5

    def integers(least, end, like=torch.uint8, size=shape):
        return torch.randint(least, end, size, generator=generator).to(like)

    def one():
        codes, unit, offset = integers(0, 1 << bits, size=(outputs, inputs)), None, None
        if scales == torch.int8:
            count = 2 if beside == "minima" else 1
            scale, unit = integers(1, 128, torch.int8), torch.rand((count, inputs // SUPERBLOCK, outputs)) + 0.5
            offset = integers(1, 128, torch.int8) if count == 2 else None
            unit = (unit * spread / (128 << bits)).half()
        elif scales == E8M0:
            scale = integers(118, 122).view(E8M0)
        elif scales == E4M3:
            scale, unit = integers(0, 0x7F).view(E4M3), torch.rand(outputs, generator=generator) * spread / 448
        else:
            scale = (torch.rand(shape, generator=generator) * spread / (1 << bits - 2)).to(scales)
            if table == "iq4_nl":
                scale /= 16
            least = (scale.float() * (1 << bits - 1)).to(scales)
            offset = {"none": None, "zeros": integers(0, 1 << bits), "minima": least}[beside]
        bias = torch.randn(outputs, generator=generator).to(dtype) if biased else None
        return Coded(pack_words(codes, bits), scale, offset, unit, bias)

    return CodedMatrices("group_words", outputs, inputs, tuple(one() for _ in range(count)), "none", bits, table)


def draw(kind, seed, tokens, k, count, hidden, inner, dtype, biased=False, spread="all"):
    """x, ids, weights, gate_up, down. `spread`: where tokens go: to all, one takes all, or some are padding."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand((tokens, count), generator=generator).argsort(1)[:, :k].int()
    if spread == "one":
        order[:, 0] = count - 1
        order[:, 1:] = torch.where(order[:, 1:] == count - 1, 0, order[:, 1:])
    if spread == "padding":
        order[::2] = NOWHERE
    x = torch.randn((tokens, hidden), generator=generator).to(dtype)
    weights = torch.rand((tokens, k), generator=generator)
    gate_up = matrices(kind, seed, count, 2 * inner, hidden, dtype, biased)
    down = matrices(kind, seed + 1, count, hidden, inner, dtype, biased)
    return x, order.contiguous(), weights, gate_up, down


def close(got, drawn, kind, first=0):
    """Within what the roundings of both products and of the gate come to, against the reference in float64."""
    x, ids, weights, gate_up, down = drawn
    wide = coded_experts_reference(x.double(), ids, weights, gate_up, down, kind, first)
    assert got.dtype == x.dtype
    room = 1e-5 if x.dtype == F32 else 4 * torch.finfo(x.dtype).eps
    error = (got.double() - wide).norm(dim=1)
    assert (error <= room * (wide.norm(dim=1) + 0.1 * float(wide.norm()))).all()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    stored=st.sampled_from(sorted(KINDS)),
    tokens=st.integers(0, 24),
    k=st.integers(1, 3),
    count=st.sampled_from([3, 5, 40]),
    dtype=st.sampled_from([BF16, F16, F32]),
    kind=st.sampled_from(["silu", "gelu_tanh", "swigluoai"]),
    biased=st.booleans(),
    spread=st.sampled_from(["all", "one", "padding"]),
    seed=st.integers(0, 99),
)
def test_the_weighted_sum_is_that_of_the_reference(stored, tokens, k, count, dtype, kind, biased, spread, seed):
    inner = SUPERBLOCK if KINDS[stored][2] == torch.int8 else 64
    drawn = draw(stored, seed, tokens, k, count, SUPERBLOCK, inner, dtype, biased, spread)
    if kind == "swigluoai":
        drawn[0].mul_(8)  # beyond the limit
    close(coded_experts(*drawn, kind, 0), drawn, kind)
