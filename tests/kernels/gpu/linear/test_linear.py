"""The kernels for few tokens in the interpreter against float64, and the choice between them and cuBLAS."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.linear import linear as forms
from quire.kernels.gpu.linear.norm_before import Norm
from quire.kernels.gpu.linear.tiles import MOST_TOKENS, vector_tiles
from quire.kernels.gpu.linear.vector_linear import vector_linear
from quire.kernels.gpu.tuning import linear_trials
from quire.kernels.linear.linear import norm_linear_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
HALVES = (torch.bfloat16, torch.float16)


def draw(seed, num_tokens, size_in, size_out, dtype):
    """x, residual, norm weight, weight, bias"""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_tokens, size_in), (num_tokens, size_in), (size_in,), (size_out, size_in), (size_out,))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def tiles_of(block_o=16, block_i=32):
    return {"cublas": 0, "block_o": block_o, "block_i": block_i, "num_warps": 1}


def check(out, total, norm, weight, bias, gate):
    """Within what rounding each factor and the result to its dtype may move the sums."""
    step = max(torch.finfo(out.dtype).eps, 1e-6)
    wide = total.double()
    if norm is not None:
        wide = wide / (wide.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
    offset = 0 if bias is None else bias.double()
    expected = wide @ weight.double().T + offset
    error = 2 * step * (wide.abs() @ weight.double().abs().T + abs(offset))
    if gate is not None:
        (expected_gate, expected_up), (gate_error, up_error) = expected.chunk(2, -1), error.chunk(2, -1)
        activated = {
            "silu": torch.nn.functional.silu(expected_gate),
            "gelu": torch.nn.functional.gelu(expected_gate),
            "gelu_tanh": torch.nn.functional.gelu(expected_gate, approximate="tanh"),
        }[gate]
        expected = activated * expected_up
        error = 1.2 * gate_error * (expected_up.abs() + up_error) + activated.abs() * up_error
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= error + step * (expected.abs() + 1)).all()


@settings(max_examples=40)
@given(
    num_tokens=st.integers(1, MOST_TOKENS),
    size_in=st.integers(1, 70),
    half=st.integers(1, 40),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    norm=st.sampled_from(["", "alone", "residual"]),
    gate=st.sampled_from([None, "silu", "gelu", "gelu_tanh"]),
    has_bias=st.booleans(),
    block_o=st.sampled_from([1, 4, 16]),
    block_i=st.sampled_from([8, 32, 64]),
    seed=st.integers(0, 99),
)
def test_few_tokens_agree_with_float64_whatever_the_shape_and_tiles(
    num_tokens, size_in, half, dtype, norm, gate, has_bias, block_o, block_i, seed
):
    x, residual, norm_weight, weight, bias = draw(seed, num_tokens, size_in, 2 * half, dtype)
    bias = bias if has_bias else None
    before, total = None, x
    if norm:
        total = torch.empty_like(x) if norm == "residual" else x
        before = Norm(residual if norm == "residual" else None, norm_weight, 1e-5, total)
    out = vector_linear(x, weight, bias, gate, tiles_of(block_o, block_i), before)
    if norm == "residual":
        assert torch.equal(total, x + residual)
    check(out, total, before, weight, bias, gate)


def test_nan_and_infinity_stay_in_their_rows():
    x, residual, norm_weight, weight, _ = draw(1, 4, 40, 24, torch.bfloat16)
    poisoned = x.clone()
    poisoned[1], poisoned[3, 7] = float("nan"), float("inf")
    outs = []
    for rows in (x, poisoned):
        norm = Norm(residual, norm_weight, 1e-5, torch.empty_like(x))
        outs.append(vector_linear(rows, weight, None, "silu", tiles_of(), norm))
    clean, out = outs
    assert out[[1, 3]].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("num_tokens", [1, 2, 3, MOST_TOKENS])
def test_a_row_gives_the_same_bits_whatever_the_others_hold(num_tokens):
    x, residual, norm_weight, weight, bias = draw(2, num_tokens, 48, 20, torch.bfloat16)
    norm = Norm(residual, norm_weight, 1e-5, torch.empty_like(x))
    out = vector_linear(x, weight, bias, "silu", tiles_of(), norm)
    others = torch.arange(num_tokens) != 0
    x[others], residual[others] = 3.0, -1.0
    norm = Norm(residual, norm_weight, 1e-5, torch.empty_like(x))
    assert torch.equal(vector_linear(x, weight, bias, "silu", tiles_of(), norm)[:1], out[:1])


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_forms_take_any_number_of_tokens(num_tokens, dtype):
    x, residual, norm_weight, weight, bias = draw(3, num_tokens, 32, 24, dtype)
    check(forms.linear(x, weight, bias), x, None, weight, bias, None)
    for before in (None, residual):
        out, total = forms.norm_linear(x, before, norm_weight, 1e-5, weight, bias, "gelu")
        assert torch.equal(total, x if before is None else x + before)
        # the norm that is a launch of its own rounds twice more than the one that is not
        loose = Norm(before, norm_weight, 1e-5, total)
        expected, _ = norm_linear_reference(
            *(t if t is None else t.double() for t in (total, None, loose.weight)),
            1e-5,
            weight.double(),
            bias.double(),
            "gelu",
        )
        step = 16 * max(torch.finfo(dtype).eps, 1e-6)
        torch.testing.assert_close(out.double(), expected, rtol=step, atol=step * 16)


def test_float16_does_not_overflow_before_the_norm_divides():
    x = torch.full((2, 32), 30000.0, dtype=torch.float16)
    norm_weight = torch.full((32,), 4.0, dtype=torch.float16)
    weight = torch.full((16, 32), 0.25, dtype=torch.float16)
    out, _ = forms.norm_linear(x, None, norm_weight, 1e-5, weight, None, None)
    assert torch.equal(out, torch.full((2, 16), 32.0, dtype=torch.float16))


def test_own_kernels_run_few_tokens_of_half_precision_and_cublas_the_rest(monkeypatch):
    calls = []
    monkeypatch.setattr(forms, "vector_linear", lambda x, *_: calls.append((len(x), x.dtype)) or x)
    monkeypatch.setattr(forms, "torch_linear", lambda x, *_: x)
    weight = torch.ones((16, 16))
    for dtype in (*HALVES, torch.float32, torch.float64):
        for num_tokens in (1, 4, 5):
            forms.linear(torch.ones((num_tokens, 16), dtype=dtype), weight.to(dtype), None)
    assert calls == [(tokens, dtype) for dtype in HALVES for tokens in (1, 4)]


def test_the_tile_table_chooses_the_tiles_and_may_choose_cublas(monkeypatch):
    asked, launched = [], []

    def tile(operation, shape, default):
        asked.append((operation, shape))
        return {**default, "cublas": int("t2 " in shape), "block_o": 64}

    monkeypatch.setattr(forms, "tile", tile)
    monkeypatch.setattr(forms, "vector_linear", lambda x, *rest: launched.append((len(x), rest[3]["block_o"])) or x)
    forms.tiles_for.cache_clear()
    x, _, norm_weight, weight, _ = draw(4, 3, 32, 24, torch.bfloat16)
    forms.norm_linear(x, None, norm_weight, 1e-5, weight, None, "silu")
    forms.linear(x[:2], weight, None)
    forms.tiles_for.cache_clear()
    assert asked == [("norm_linear", "t4 32 -> 24 bfloat16 gated"), ("linear", "t2 32 -> 24 bfloat16")]
    assert launched == [(3, 64)]


@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize("num_tokens", range(1, MOST_TOKENS + 1))
def test_default_tiles_keep_enough_weights_under_way(num_tokens, is_normed):
    tiles = vector_tiles(num_tokens, is_normed)
    if tiles["cublas"]:
        assert is_normed
        return
    of_a_thread = tiles["block_o"] * tiles["block_i"] // (32 * tiles["num_warps"])
    assert 32 <= of_a_thread <= 64
    assert all(tiles[name].bit_count() == 1 for name in ("block_o", "block_i", "num_warps"))


def test_trials_cover_the_layers_and_every_candidate_computes_the_same():
    trials = list(linear_trials.trials())
    assert len({(trial.operation, trial.shape) for trial in trials}) == len(trials)
    names = vector_tiles(1, True).keys()
    assert all(candidate.keys() <= names for trial in trials for candidate in trial.candidates)
    launch = linear_trials.prepare("norm_linear", 3, 64, 48, "silu", torch.device("cpu"))
    (expected, _), *others = [launch(tiles_of(rows)) for rows in (1, 4)]
    for out, _ in [*others, launch({"cublas": 1})]:
        torch.testing.assert_close(out, expected, rtol=0.05, atol=0.5)
