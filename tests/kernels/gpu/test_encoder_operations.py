"""The encoder's kernels against their references, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.encoder_attention import encoder_attention_reference
from quire.kernels.attention.rope_in_place import rope_in_place_reference
from quire.kernels.gpu.attention.encoder_attention import encoder_attention
from quire.kernels.gpu.attention.rope_in_place import rope_in_place
from quire.kernels.gpu.attention.tiles import LARGEST_HEAD, LONG_ROW, encoder_tiles, head_parts
from quire.kernels.gpu.linear.activation import activation
from quire.kernels.gpu.linear.layer_norm import layer_norm
from quire.kernels.gpu.linear.tiles import WIDEST_NORM
from quire.kernels.linear.activation import ACTIVATIONS, activation_reference
from quire.kernels.linear.layer_norm import layer_norm_reference

pytestmark = pytest.mark.usefixtures("poisoned_results")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def close(actual, expected):
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    tolerance = max(1e-4, 4 * torch.finfo(actual.dtype).eps)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


def randn(*shape, seed, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


TILE = encoder_tiles(16, 2, 1).queries
assert encoder_tiles(16, 2, 1).keys == TILE
LENGTHS = st.lists(st.sampled_from([1, 2, 17, TILE - 1, TILE, TILE + 1, 2 * TILE + 3]), max_size=3)


@settings(max_examples=25)
@given(
    st.sampled_from(DTYPES),
    LENGTHS,
    st.sampled_from([(1, 16), (2, 24), (3, 32), (1, 72), (2, 80), (1, 136)]),
    st.integers(0, 99),
)
def test_attention_equals_the_reference_in_rows_of_any_length(dtype, lengths, heads, seed):
    num_heads, head_dim = heads
    qkv = randn(sum(lengths) + 2, 3 * num_heads * head_dim, seed=seed, dtype=dtype)
    qkv[sum(lengths) :] = torch.nan
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    arguments = (qkv, starts, tuple(lengths), num_heads, head_dim**-0.5)
    close(encoder_attention(*arguments)[: sum(lengths)], encoder_attention_reference(*arguments)[: sum(lengths)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 72, 80, 128])
def test_long_rows_have_tiles_of_their_own_and_the_same_attention(dtype, head_dim):
    lengths = (3, LONG_ROW + 1, 70)
    queries, fewer = (encoder_tiles(head_dim, dtype.itemsize, longest).queries for longest in (max(lengths), LONG_ROW))
    assert (queries > fewer) == (dtype != torch.float32)
    qkv, starts = randn(sum(lengths), 3 * head_dim, seed=1, dtype=dtype), torch.tensor([0, *lengths]).cumsum(0).int()
    arguments = (qkv, starts, lengths, 1, head_dim**-0.5)
    close(encoder_attention(*arguments), encoder_attention_reference(*arguments))


def test_a_head_is_held_by_one_power_of_two_or_by_two_that_are_less():
    for head_dim in range(1, LARGEST_HEAD + 1):
        part, rest = head_parts(head_dim)
        assert all(size & (size - 1) == 0 and size >= 16 for size in (part, rest) if size)
        assert part + rest >= head_dim > (part if rest else part // 2 if part > 16 else 0)
        assert part + rest <= 1 << max(4, (head_dim - 1).bit_length())
    assert [head_parts(size) for size in (16, 64, 72, 80, 96, 112)] == [
        (16, 0),
        (64, 0),
        (64, 16),
        (64, 16),
        (64, 32),
        (128, 0),
    ]


@settings(max_examples=60)
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 9),
    st.sampled_from([(1, 16, 8), (3, 8, 2), (2, 24, 0), (16, 72, 36), (5, 80, 40), (2, 128, 64)]),
    st.integers(0, 99),
)
def test_rotation_in_place_equals_the_reference_and_leaves_the_rest(dtype, num_tokens, heads, seed):
    num_heads, head_dim, half = heads
    qkv = randn(num_tokens, 3 * num_heads * head_dim, seed=seed, dtype=dtype)
    angles = 100 * randn(num_tokens, half, seed=seed + 1, dtype=torch.float32)
    expected = qkv.clone()
    rope_in_place_reference(expected, angles.cos(), angles.sin(), num_heads)
    rope_in_place(qkv, angles.cos(), angles.sin(), num_heads)
    close(qkv, expected)
    assert torch.equal(qkv[:, 2 * num_heads * head_dim :], expected[:, 2 * num_heads * head_dim :])


def test_nan_stays_in_its_row():
    qkv, starts = randn(40, 96, seed=0, dtype=torch.float32), torch.tensor([0, 10, 40]).int()
    qkv[3, 70] = torch.nan
    out = encoder_attention(qkv, starts, (10, 30), 2, 0.25)
    assert out[:10].isnan().any()
    assert out[10:].isfinite().all()


def test_what_the_chip_cannot_hold_is_refused_by_name():
    starts = torch.tensor([0, 1]).int()
    with pytest.raises(ValueError, match=r"^qkv: float64"):
        encoder_attention(torch.ones((1, 48), dtype=torch.float64), starts, (1,), 1, 1.0)
    with pytest.raises(ValueError, match=rf"^qkv: heads of at most {LARGEST_HEAD}"):
        encoder_attention(torch.ones((1, 3 * LARGEST_HEAD + 3)), starts, (1,), 1, 1.0)
    wide = torch.ones((1, WIDEST_NORM + 1))
    with pytest.raises(ValueError, match=rf"^x: rows of at most {WIDEST_NORM}"):
        layer_norm(wide, None, wide[0], wide[0], 1e-5)


@settings(max_examples=60)
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 5),
    st.sampled_from([1, 3, 33, 384, 1024]),
    st.booleans(),
    st.integers(0, 99),
)
def test_layer_norm_equals_the_reference(dtype, num_rows, size, add, seed):
    x, residual = 3 * randn(2, num_rows, size, seed=seed, dtype=dtype) + 1
    weight, bias = randn(2, size, seed=seed + 1, dtype=dtype)
    arguments = (x, residual if add else None, weight, bias, 1e-5)
    close(layer_norm(*arguments), layer_norm_reference(*arguments))


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
@pytest.mark.parametrize("shape", [(0, 8), (1, 7), (3, 1025)])
def test_the_plain_activation_equals_the_reference(kind, shape):
    for dtype in DTYPES:
        x = 4 * randn(*shape, seed=5, dtype=dtype)
        close(activation(x, kind), activation_reference(x, kind))
