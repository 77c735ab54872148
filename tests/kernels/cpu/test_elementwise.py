"""Compiled norms, gated activation, rotation in place and rotate-and-store against their references."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.int8_rows import dequantize_rows, quantize_rows, row_width
from quire.kernels.attention.rope_in_place import rope_in_place_reference
from quire.kernels.attention.rope_store_kv import rope_store_kv_reference
from quire.kernels.cpu.linear.activation import gated_activation
from quire.kernels.cpu.linear.norm import add_rms_norm, rms_norm
from quire.kernels.cpu.native import UnsupportedDtypeError
from quire.kernels.cpu.rope_in_place import rope_in_place
from quire.kernels.cpu.rope_store_kv import rope_store_kv
from quire.kernels.linear.activation import gated_activation_reference
from quire.kernels.linear.norm import add_rms_norm_reference, rms_norm_reference
from quire.kernels.rows import scale, scale_reference

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# float32: 1e-5; the others: the reference rounds in the same places, so at most a unit in the last place or two differs
TOLERANCE = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (1.6e-2, 1e-3), torch.float16: (2e-3, 1e-4)}
WIDTHS = [1, 7, 16, 33, 64, 768, 1030]

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]
common = settings(max_examples=40)


def close(result, wanted):
    rtol, atol = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(result, wanted, rtol=rtol, atol=atol, equal_nan=True)


def gated(x, kind):
    """The reference; in float64 for float32, where torch's own `gelu` loses digits of small results."""
    if x.dtype == torch.float32:
        return gated_activation_reference(x.double(), kind).float()
    return gated_activation_reference(x, kind)


def random(shape, dtype, seed, spread=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


rows = st.sampled_from([0, 1, 2, 17])
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 1000)


@common
@given(
    rows=rows,
    width=st.sampled_from(WIDTHS),
    dtype=dtypes,
    wide=st.booleans(),
    spread=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=seeds,
)
def test_norms_follow_their_references(rows, width, dtype, wide, spread, seed):
    """`wide`: gains are float32."""
    x, residual = random((2, rows, width), dtype, seed, spread)
    weight = random((width,), torch.float32 if wide else dtype, seed + 1)
    close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    wanted, wanted_total = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert torch.equal(total, wanted_total)
    close(normed, wanted)


@common
@given(rows=rows, width=st.sampled_from(WIDTHS), dtype=dtypes, factor=st.sampled_from([0.5, 3.3, 45.25]), seed=seeds)
def test_rows_are_scaled_to_the_bit(rows, width, dtype, factor, seed):
    x = random((rows, width), dtype, seed)
    assert torch.equal(scale(x, factor), scale_reference(x, factor))


def test_norm_of_heads_keeps_the_shape():
    x = random((3, 4, 20), torch.float32, 0)
    close(rms_norm(x, x[0, 0], 1e-6), rms_norm_reference(x, x[0, 0], 1e-6))


def test_nan_and_infinity_stay_in_their_row():
    x = random((3, 40), torch.float32, 0)
    x[1, 3] = torch.nan
    weight = torch.ones(40)
    for result in (rms_norm(x, weight, 1e-5), *add_rms_norm(x, x, weight, 1e-5)):
        assert result[[0, 2]].isfinite().all()
    assert rms_norm(x, weight, 1e-5)[1].isnan().all()
    gated = gated_activation(x, "silu")
    assert gated[1, 3].isnan()
    assert gated.isnan().sum() == 1


@common
@given(
    rows=rows,
    width=st.sampled_from(WIDTHS),
    dtype=dtypes,
    kind=st.sampled_from(["silu", "gelu", "gelu_tanh"]),
    seed=seeds,
)
def test_gated_activation_follows_its_reference(rows, width, dtype, kind, seed):
    x = random((rows, 2 * width), dtype, seed, 4.0)
    close(gated_activation(x, kind), gated(x, kind))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gates_at_the_ends_of_the_numbers_are_those_of_the_reference(kind):
    gate = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 100.0, -100.0, 3e38, -3e38, torch.inf, torch.nan])
    x = torch.cat((gate, torch.ones(12)))[None]
    close(gated_activation(x, kind), gated(x, kind))


@common
@given(
    rows=rows,
    num_heads=st.sampled_from([1, 3, 16]),
    head_dim=st.sampled_from([8, 20, 32, 72, 80, 128]),
    rotated=st.sampled_from([0.0, 0.5, 1.0]),
    dtype=dtypes,
    seed=seeds,
)
def test_rope_in_place_follows_its_reference(rows, num_heads, head_dim, rotated, dtype, seed):
    qkv = random((rows, 3 * num_heads * head_dim), dtype, seed, 3.0)
    angles = random((rows, int(head_dim * rotated) // 2), torch.float32, seed + 1, 30.0)
    wanted = qkv.clone()
    rope_in_place(qkv, angles.cos(), angles.sin(), num_heads)
    rope_in_place_reference(wanted, angles.cos(), angles.sin(), num_heads)
    close(qkv, wanted)
    assert torch.equal(qkv[:, 2 * num_heads * head_dim :], wanted[:, 2 * num_heads * head_dim :])


@common
@given(
    slots=st.lists(st.integers(-1, 31), max_size=9, unique=True),
    block_size=st.sampled_from([1, 4, 16]),
    heads=st.sampled_from([(1, 1), (2, 2), (1, 7), (3, 1)]),
    head_dim=st.sampled_from([8, 20, 64, 80, 128]),
    rotated=st.sampled_from([0.25, 0.5, 1.0]),
    with_norm=st.booleans(),
    dtype=dtypes,
    cache_dtype=st.sampled_from([None, torch.float32, torch.bfloat16, torch.float16, FP8, torch.int8]),
    seed=seeds,
)
def test_rope_store_kv_follows_its_reference(
    slots, block_size, heads, head_dim, rotated, with_norm, dtype, cache_dtype, seed
):
    (kv_heads, groups), num_tokens = heads, len(slots)
    cache_dtype = cache_dtype or dtype
    qkv = random((num_tokens, (groups + 2) * kv_heads * head_dim), dtype, seed, 3.0)
    angles = random((num_tokens, int(head_dim * rotated) // 2), torch.float32, seed + 1, 3.0)
    weights = random((2, head_dim), dtype, seed + 2) if with_norm else (None, None)
    scales = random((2, kv_heads), torch.float32, seed + 3).abs() / 50 + 1e-3 if cache_dtype == FP8 else (None, None)
    shape = (2, -(-32 // block_size), block_size, kv_heads, row_width(head_dim, cache_dtype))
    caches = [torch.full(shape, 7.0).to(cache_dtype) for _ in "ab"]
    mapping = torch.tensor(slots, dtype=torch.int64)
    step = (qkv, angles.cos(), angles.sin())
    query = rope_store_kv(*step, *caches[0], mapping, *weights, 1e-6, *scales)
    wanted = rope_store_kv_reference(*step, *caches[1], mapping, *weights, 1e-6, *scales)
    close(query, wanted)
    if cache_dtype == torch.int8:  # a unit of the codes, where the two round differently
        result, wanted = map(dequantize_rows, caches)
        assert ((result - wanted).abs() <= 1.01 / 127 * wanted.abs().amax(-1, keepdim=True)).all()
        return
    result, wanted = (cache.float() for cache in caches)
    if cache_dtype == FP8:  # a unit in the last place, where the two round differently
        torch.testing.assert_close(result, wanted, rtol=0.13, atol=2**-9)
    else:
        rtol, atol = max(TOLERANCE[dtype], TOLERANCE[cache_dtype])
        torch.testing.assert_close(result, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_heads_are_normalised_by_gains_of_float32(dtype, cache_dtype):
    qkv, angles = random((5, 4 * 64), dtype, 1), random((5, 32), torch.float32, 2)
    weights = 1 + random((2, 64), torch.float32, 3) / 1000  # which 16 bits would round away
    shape = (2, 2, 4, 1, row_width(64, cache_dtype))
    caches = [torch.zeros(shape).to(cache_dtype) for _ in "ab"]
    step = qkv, angles.cos(), angles.sin()
    query = rope_store_kv(*step, *caches[0], torch.arange(5), *weights, 1e-6, None, None)
    wanted = rope_store_kv_reference(*step, *caches[1], torch.arange(5), *weights, 1e-6, None, None)
    room = torch.finfo(dtype).eps
    torch.testing.assert_close(query, wanted, rtol=0, atol=4 * room)
    read = dequantize_rows if cache_dtype == torch.int8 else torch.Tensor.float
    torch.testing.assert_close(*map(read, caches), rtol=0.01, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8])
def test_every_number_of_a_small_format_survives_and_every_rounding_is_that_of_torch(dtype):
    bits = torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int64)
    exact = bits.to(torch.uint8 if dtype == FP8 else torch.uint16).view(dtype).float()
    exact = exact[exact.isfinite()].sort().values
    middle = (exact[1:].double() + exact[:-1].double()) / 2
    numbers = torch.cat((exact, middle.float(), middle.float() * (1 + 2**-20), torch.tensor([torch.nan])))
    numbers = numbers[numbers.abs() < 448] if dtype == FP8 else numbers
    numbers = torch.nn.functional.pad(numbers, (0, -len(numbers) % 16)).view(-1, 16)
    qkv = torch.cat((numbers, numbers, numbers), dim=1)
    keys, values = (torch.zeros((len(numbers), 1, 1, 16)).to(dtype) for _ in "kv")
    none = torch.empty((len(numbers), 0))
    rope_store_kv(qkv, none, none, keys, values, torch.arange(len(numbers)), None, None, 1.0, None, None)
    for cache in (keys, values):
        torch.testing.assert_close(
            cache.float().view(-1, 16), numbers.to(dtype).float(), rtol=0, atol=0, equal_nan=True
        )


def stored_as_integers(numbers):
    """Rows of a cache in int8 that these numbers [T, D] become, as keys and as values."""
    count, head_dim = numbers.shape
    caches = torch.full((2, count, 1, 1, row_width(head_dim, torch.int8)), 99, dtype=torch.int8)
    none = torch.empty((count, 0))
    qkv = numbers.repeat(1, 3)
    rope_store_kv(qkv, none, none, *caches, torch.arange(count), None, None, 1.0, None, None)
    return [cache.view(count, -1) for cache in caches]


@pytest.mark.parametrize("head_dim", [8, 20, 64, 100])
def test_a_row_of_integers_is_that_of_the_reference_to_the_bit(head_dim):
    numbers = random((300, head_dim), torch.float32, head_dim) * torch.logspace(-12, 12, 300)[:, None]
    numbers[:40] = torch.randint(-254, 255, (40, head_dim)) / 2  # halves between codes
    numbers[:40, 3] = 127.0
    for rows in stored_as_integers(numbers):
        assert torch.equal(rows, quantize_rows(numbers))


def test_a_row_of_zeros_has_none_and_one_with_nan_or_infinity_is_nan():
    numbers = torch.zeros((4, 20))
    numbers[1, 7], numbers[2, 19], numbers[3, 0] = torch.nan, torch.inf, -torch.inf
    for rows in stored_as_integers(numbers):
        zeros, *others = dequantize_rows(rows)
        assert not zeros.any()
        assert all(one.isnan().all() for one in others)


def test_what_an_8_bit_cache_cannot_hold_is_clamped_and_nan_is_kept():
    qkv = torch.tensor([1e6, -1e6, 464.0, torch.inf, -torch.inf, torch.nan, 448.0, 0.0]).repeat(1, 3)
    keys, values = (torch.zeros((1, 1, 1, 8)).to(FP8) for _ in "kv")
    none, one = torch.empty((1, 0)), torch.ones(1)
    rope_store_kv(qkv, none, none, keys, values, torch.tensor([0]), None, None, 1.0, one, one)
    wanted = torch.tensor([448.0, -448.0, 448.0, 448.0, -448.0, torch.nan, 448.0, 0.0])
    for cache in (keys, values):
        torch.testing.assert_close(cache.float().flatten(), wanted, rtol=0, atol=0, equal_nan=True)


def test_threads_do_not_change_a_bit(threads):
    x = random((400, 1536), torch.float32, 0)
    angles = random((400, 32), torch.float32, 1)
    results = []
    for count in (1, 2, 3):
        threads(count)
        caches = torch.zeros((2, 25, 16, 4, 64))
        query = rope_store_kv(
            x, angles.cos(), angles.sin(), *caches, torch.arange(400), x[0, :64], x[1, :64], 1e-6, None, None
        )
        turned = x.clone()
        rope_in_place(turned, angles.cos(), angles.sin(), 8)
        results.append((query, caches, turned, *add_rms_norm(x, x, x[0], 1e-5), gated_activation(x, "gelu")))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: rms_norm(x, x[0], 1e-5),
        lambda x: add_rms_norm(x, x, x[0], 1e-5),
        lambda x: gated_activation(x, "silu"),
        lambda x: rope_in_place(x, x[:, :0].float(), x[:, :0].float(), 1),
    ],
)
def test_a_dtype_without_a_form_is_refused_by_name(call):
    with pytest.raises(UnsupportedDtypeError, match=r"^(x|qkv): .*float64"):
        call(torch.ones((2, 6), dtype=torch.float64))
