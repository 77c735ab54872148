"""The linear operations on CPU: what they compute, in float64, and what they refuse."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.linear.linear import linear, norm_linear

sizes = settings(max_examples=40)


def draw(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def activate(gate: float, kind: str) -> float:
    if kind == "silu":
        return gate / (1 + math.exp(-gate))
    if kind == "gelu":
        return gate * (1 + math.erf(gate / math.sqrt(2))) / 2
    return gate * (1 + math.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2


@sizes
@given(st.integers(0, 9), st.integers(1, 33), st.integers(1, 17), st.booleans(), st.integers(0, 99))
def test_linear_is_the_product_with_every_row_of_the_weight(num_tokens, size_in, size_out, has_bias, seed):
    x, weight, bias = draw(seed, (num_tokens, size_in), (size_out, size_in), (size_out,))
    expected = torch.einsum("ti,oi->to", x.double(), weight.double()) + (bias.double() if has_bias else 0)
    out = linear(x, weight, bias if has_bias else None)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


@sizes
@given(
    st.integers(0, 5),
    st.integers(1, 33),
    st.integers(1, 9),
    st.sampled_from([None, "silu", "gelu", "gelu_tanh"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
def test_norm_linear_is_residual_norm_linear_and_gate_in_turn(
    num_tokens, size_in, half, gate, has_residual, has_bias, seed
):
    x, residual, norm_weight, weight, bias = draw(
        seed, (num_tokens, size_in), (num_tokens, size_in), (size_in,), (2 * half, size_in), (2 * half,)
    )
    out, total = norm_linear(
        x, residual if has_residual else None, norm_weight, 1e-5, weight, bias if has_bias else None, gate
    )
    assert torch.equal(total, x + residual if has_residual else x)
    wide = total.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm_weight.double()
    expected = normed @ weight.double().T + (bias.double() if has_bias else 0)
    if gate is not None:
        gated = [[activate(value, gate) for value in row] for row in expected[:, :half].tolist()]
        expected = torch.tensor(gated, dtype=torch.float64).reshape(num_tokens, half) * expected[:, half:]
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)


def test_a_row_of_nan_stays_a_row():
    x, norm_weight, weight = draw(0, (4, 32), (32,), (16, 32), dtype=torch.bfloat16)
    clean, _ = norm_linear(x, None, norm_weight, 1e-5, weight, None, "silu")
    x[2] = float("nan")
    out, _ = norm_linear(x, None, norm_weight, 1e-5, weight, None, "silu")
    assert out[2].isnan().all()
    torch.testing.assert_close(out[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", {"x": torch.ones((2, 8))[0]}),
        ("x", {"x": torch.ones((2, 8), dtype=torch.int32)}),
        ("x", {"x": torch.ones((8, 2)).T}),
        ("weight", {"weight": torch.ones((6, 7))}),
        ("weight", {"weight": torch.ones((6, 8), dtype=torch.bfloat16)}),
        ("weight", {"weight": torch.ones((8, 6)).T}),
        ("weight", {"weight": torch.ones((5, 8)), "bias": None, "gate": "silu"}),
        ("bias", {"bias": torch.ones(5)}),
        ("norm_weight", {"norm_weight": torch.ones(7)}),
        ("residual", {"residual": torch.ones((3, 8))}),
        ("residual", {"residual": torch.ones((2, 8), device="meta")}),
        ("eps", {"eps": 0.0}),
        ("gate", {"gate": "relu"}),
    ],
)
def test_an_argument_that_does_not_fit_is_refused_by_name(name, change):
    arguments = {
        "x": torch.ones((2, 8)),
        "residual": torch.ones((2, 8)),
        "norm_weight": torch.ones(8),
        "eps": 1e-5,
        "weight": torch.ones((6, 8)),
        "bias": torch.ones(6),
        "gate": None,
    }
    norm_linear(*arguments.values())
    with pytest.raises(ValueError, match=f"^{name}: "):
        norm_linear(*{**arguments, **change}.values())
    if name in ("x", "weight", "bias") and "gate" not in change:
        x, weight, bias = ({**arguments, **change}[key] for key in ("x", "weight", "bias"))
        with pytest.raises(ValueError, match=f"^{name}: "):
            linear(x, weight, bias)
