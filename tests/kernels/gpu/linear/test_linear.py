"""The kernels for few tokens in the interpreter against float64, and the choice between them and cuBLAS."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.gpu.linear import linear as forms
from quire.kernels.gpu.linear.skinny_linear import Norm, skinny_linear
from quire.kernels.gpu.linear.tiles import skinny_tiles
from quire.kernels.gpu.tuning import linear_trials
from quire.kernels.linear.linear import norm_linear_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
HALVES = (torch.bfloat16, torch.float16)


def draw(seed, num_tokens, size_in, size_out, dtype):
    """x, residual, norm weight, weight, bias"""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_tokens, size_in), (num_tokens, size_in), (size_in,), (size_out, size_in), (size_out,))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def tiles_of(block_o=16, warps=1, parts=1):
    block_i = 16 * warps
    return {"cublas": 0, "block_o": block_o, "block_i": block_i, "parts": parts, "num_warps": warps, "num_stages": 2}


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


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_tokens=st.integers(1, 16),
    size_in=st.integers(1, 70),
    half=st.integers(1, 40),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    norm=st.sampled_from(["", "alone", "residual"]),
    gate=st.sampled_from([None, "silu", "gelu", "gelu_tanh"]),
    has_bias=st.booleans(),
    block_o=st.sampled_from([16, 32]),
    warps=st.sampled_from([1, 2]),
    parts=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_few_tokens_agree_with_float64_whatever_the_shape_and_tiles(
    num_tokens, size_in, half, dtype, norm, gate, has_bias, block_o, warps, parts, seed
):
    x, residual, norm_weight, weight, bias = draw(seed, num_tokens, size_in, 2 * half, dtype)
    bias = bias if has_bias else None
    before, total = None, x
    if norm:
        total = torch.empty_like(x) if norm == "residual" else x
        before = Norm(residual if norm == "residual" else None, norm_weight, 1e-5, total)
    out = skinny_linear(x, weight, bias, gate, tiles_of(block_o, warps, parts), before)
    if norm == "residual":
        assert torch.equal(total, x + residual)
    check(out, total, before, weight, bias, gate)


@pytest.mark.parametrize("parts", [1, 2])
def test_nan_and_infinity_stay_in_their_rows(parts):
    x, residual, norm_weight, weight, _ = draw(1, 5, 40, 24, torch.bfloat16)
    poisoned = x.clone()
    poisoned[1], poisoned[4, 7] = float("nan"), float("inf")
    outs = []
    for rows in (x, poisoned):
        norm = Norm(residual, norm_weight, 1e-5, torch.empty_like(x))
        outs.append(skinny_linear(rows, weight, None, "silu", tiles_of(parts=parts), norm))
    clean, out = outs
    assert out[[1, 4]].isnan().all()
    assert torch.equal(out[[0, 2, 3]], clean[[0, 2, 3]])


def test_a_row_does_not_depend_on_the_other_rows_of_the_step():
    x, residual, norm_weight, weight, bias = draw(2, 7, 48, 20, torch.bfloat16)
    together, total = forms.norm_linear(x, residual, norm_weight, 1e-5, weight, bias, "silu")
    for row in range(7):
        alone = slice(row, row + 1)
        out, sum_alone = forms.norm_linear(x[alone], residual[alone], norm_weight, 1e-5, weight, bias, "silu")
        assert torch.equal(out, together[alone])
        assert torch.equal(sum_alone, total[alone])


@pytest.mark.parametrize("num_tokens", [0, 1, 16, 17])
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
    monkeypatch.setattr(forms, "skinny_linear", lambda x, *_: calls.append((len(x), x.dtype)) or x)
    monkeypatch.setattr(forms, "torch_linear", lambda x, *_: x)
    weight = torch.ones((16, 16))
    for dtype in (*HALVES, torch.float32, torch.float64):
        for num_tokens in (1, 16, 17):
            forms.linear(torch.ones((num_tokens, 16), dtype=dtype), weight.to(dtype), None)
    assert calls == [(tokens, dtype) for dtype in HALVES for tokens in (1, 16)]


def test_the_tile_table_chooses_the_tiles_and_may_choose_cublas(monkeypatch):
    asked, launched = [], []

    def tile(operation, shape, default):
        asked.append((operation, shape))
        return {**default, "cublas": int("t2 " in shape), "block_o": 64}

    monkeypatch.setattr(forms, "tile", tile)
    monkeypatch.setattr(forms, "skinny_linear", lambda x, *rest: launched.append((len(x), rest[3]["block_o"])) or x)
    forms.tiles_for.cache_clear()
    x, _, norm_weight, weight, _ = draw(4, 3, 32, 24, torch.bfloat16)
    forms.norm_linear(x, None, norm_weight, 1e-5, weight, None, "silu")
    forms.linear(x[:2], weight, None)
    forms.tiles_for.cache_clear()
    assert asked == [("norm_linear", "t4 32 -> 24 bfloat16 gated"), ("linear", "t2 32 -> 24 bfloat16")]
    assert launched == [(3, 64)]


@given(st.integers(1, 16), st.integers(1, 20000), st.integers(1, 200000))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_default_tiles_can_be_launched_and_cover_the_layer(num_tokens, size_in, size_out):
    tiles = skinny_tiles(num_tokens, size_in, size_out)
    for name in ("block_o", "block_i", "parts", "num_warps"):
        assert tiles[name].bit_count() == 1
    assert tiles["block_o"] >= 16
    assert tiles["block_i"] >= 16 * tiles["num_warps"]
    steps = -(-size_in // tiles["block_i"])
    assert tiles["parts"] <= steps
    # weights, x and residual of all stages but the one in registers, in the smallest chip's shared memory
    stage = 2 * tiles["block_i"] * (tiles["block_o"] + 2 * 16)
    assert (tiles["num_stages"] - 1) * stage <= 99 * 1024


def test_trials_cover_the_layers_and_every_candidate_computes_the_same():
    trials = list(linear_trials.trials())
    assert len({(trial.operation, trial.shape) for trial in trials}) == len(trials)
    names = skinny_tiles(1, 64, 64).keys()
    assert all(candidate.keys() <= names for trial in trials for candidate in trial.candidates)
    launch = linear_trials.prepare("norm_linear", 3, 64, 48, "silu", torch.device("cpu"))
    (expected, _), *others = [launch({**skinny_tiles(3, 64, 48), "parts": parts}) for parts in (1, 2)]
    for out, _ in [*others, launch({"cublas": 1})]:
        torch.testing.assert_close(out, expected, rtol=0.05, atol=0.5)
