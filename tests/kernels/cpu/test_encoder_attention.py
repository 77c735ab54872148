"""Attention in both directions against its reference, for rows of any length, heads of any size, every dtype."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.encoder_attention import encoder_attention_reference
from quire.kernels.cpu.encoder_attention import encoder_attention
from quire.kernels.cpu.native import UnsupportedDtypeError

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
# around the tiles of 6, 8 and 32 queries, of 32 and 64 keys, of 256 keys and 384 queries
LENGTHS = st.lists(st.sampled_from([1, 2, 5, 6, 7, 8, 31, 33, 63, 65, 255, 257, 300, 385]), max_size=3)

pytestmark = [pytest.mark.usefixtures("instruction_set"), pytest.mark.sampled(40)]


def product(num_tokens, num_heads, head_dim, dtype=torch.float32, seed=0):
    """Queries, keys and values as the QKV layer leaves them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_tokens, 3 * num_heads * head_dim), generator=generator).to(dtype)


def starts_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


@settings(max_examples=60)
@given(
    lengths=LENGTHS,
    num_heads=st.sampled_from([1, 3]),
    head_dim=st.sampled_from([1, 7, 8, 16, 24, 32, 40, 64, 66, 72, 80, 96, 128]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_it_follows_the_reference(lengths, num_heads, head_dim, dtype, seed):
    qkv = product(sum(lengths) + 2, num_heads, head_dim, dtype, seed)
    qkv[sum(lengths) :] = torch.nan
    arguments = (qkv, starts_of(lengths), tuple(lengths), num_heads, head_dim**-0.5)
    result, wanted = (form(*arguments) for form in (encoder_attention, encoder_attention_reference))
    assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result[: sum(lengths)], wanted[: sum(lengths)], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 72])
def test_large_scores_and_values_stay_finite(dtype, head_dim):
    qkv = 30 * product(70, 1, head_dim, dtype)
    arguments = (qkv, starts_of([70]), (70,), 1, 1.0)
    result, wanted = encoder_attention(*arguments), encoder_attention_reference(*arguments)
    assert wanted.isfinite().all()
    # one key has all the weight, but for those a rounding of the scores apart
    torch.testing.assert_close(result, wanted, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 72, 144])
def test_nan_stays_in_its_row_and_head(dtype, place):
    """`place`: a query's, a key's, a value's element."""
    qkv = product(100, 1, 72, dtype)
    sound = encoder_attention(qkv, starts_of([30, 40, 30]), (30, 40, 30), 1, 0.1)
    qkv[50, place + 5] = torch.nan
    result = encoder_attention(qkv, starts_of([30, 40, 30]), (30, 40, 30), 1, 0.1)
    others = [*range(30), *range(70, 100)]
    assert torch.equal(result[others], sound[others])
    if place == 0:
        assert result[50].isnan().all()
        result[50] = sound[50]
        torch.testing.assert_close(result, sound)
    elif place == 72:
        assert result[30:70].isnan().all()
    else:
        assert result[30:70, 5].isnan().all()
        result[30:70, 5] = sound[30:70, 5]
        torch.testing.assert_close(result, sound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_company_do_not_change_a_bit(dtype, threads):
    qkv = product(700, 2, 72, dtype)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(encoder_attention(qkv, starts_of([300, 400]), (300, 400), 2, 0.1))
    alone = encoder_attention(qkv[300:].contiguous(), starts_of([400]), (400,), 2, 0.1)
    assert all(torch.equal(results[0], other) for other in results[1:])
    assert torch.equal(results[0][300:], alone)


def test_a_dtype_without_a_form_is_refused_by_name():
    with pytest.raises(UnsupportedDtypeError, match=r"^qkv: .*float64"):
        encoder_attention(torch.ones((1, 3), dtype=torch.float64), starts_of([1]), (1,), 1, 1.0)
