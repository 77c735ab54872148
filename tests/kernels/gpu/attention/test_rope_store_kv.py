"""The kernel between QKV and attention against its reference, in the interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.kernels.attention.rope_store_kv import rope_store_kv_reference
from quire.kernels.attention.values import with_values_reference
from quire.kernels.gpu.attention.rope_store_kv import rope_store_kv
from quire.kernels.gpu.attention.values import with_values

pytestmark = pytest.mark.usefixtures("poisoned_results")
NUM_BLOCKS, BLOCK_SIZE = 3, 4
PLACES = NUM_BLOCKS * BLOCK_SIZE
E4M3 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def close(actual, expected):
    """Within 1e-4 of float32, two steps of the last place of 16-bit numbers, one of 8-bit ones; a turned element is a
    difference of two rounded numbers near one, and no closer than they are."""
    steps, step = {E4M3: 1}.get(actual.dtype, 2), torch.finfo(actual.dtype).eps
    tolerance, least = max(1e-4, steps * step), 1e-5 if actual.dtype == E4M3 else max(1e-5, step / 4)
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=least, equal_nan=True)


def arguments(
    *, num_kv_heads=2, group=2, head_dim=8, half=4, slots=(5,), dtype=DTYPES[0], cache=None, norm=False, seed=0
):
    """All but the eps-and-scales tail is random; the cache is full of NaN. `norm`: the dtype of its gains, or none."""
    generator = torch.Generator().manual_seed(seed)
    cache = cache or dtype
    num_tokens = len(slots)
    qkv = 2 * torch.randn((num_tokens, num_kv_heads * (group + 2) * head_dim), generator=generator)
    angles = 100 * torch.rand((num_tokens, half), generator=generator)
    keys, values = torch.full((2, NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_dim), torch.nan).to(cache)
    gains = dtype if norm is True else norm
    weights = torch.randn((2, head_dim), generator=generator).to(gains) if norm else (None, None)
    scales = (0.01 + torch.rand((2, num_kv_heads), generator=generator)) if cache == E4M3 else (None, None)
    slot_mapping = torch.tensor(slots, dtype=torch.int64)
    return [qkv.to(dtype), angles.cos(), angles.sin(), keys, values, slot_mapping, *weights, 1e-5, *scales]


def check(given_arguments):
    """Both forms on copies of the same cache; returns the kernel's query, keys, values."""
    expected_arguments = [x.clone() if isinstance(x, torch.Tensor) else x for x in given_arguments]
    query, expected = rope_store_kv(*given_arguments), rope_store_kv_reference(*expected_arguments)
    assert (query.shape, query.dtype) == (expected.shape, expected.dtype)
    assert query.is_contiguous()
    close(query, expected)
    for actual_cache, expected_cache in zip(given_arguments[3:5], expected_arguments[3:5], strict=True):
        close(actual_cache, expected_cache)
    return query, *given_arguments[3:5]


@settings(max_examples=300)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from([None, E4M3, torch.float16]),
    st.sampled_from([False, True, torch.float32]),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 7), (3, 7)]),
    st.sampled_from([(64, 32), (80, 40), (80, 16), (96, 48), (128, 64), (128, 32), (256, 128), (7, 3), (6, 1), (5, 0)]),
    st.permutations([*range(PLACES), -1, -1, -1]),
    st.integers(0, 9),
    st.integers(0, 99),
)
def test_every_shape_type_and_option_equals_the_reference(dtype, cache, norm, heads, dims, slots, num_tokens, seed):
    num_kv_heads, group = heads
    head_dim, half = dims
    check(
        arguments(
            num_kv_heads=num_kv_heads,
            group=group,
            head_dim=head_dim,
            half=half,
            slots=slots[:num_tokens],
            dtype=dtype,
            cache=cache,
            norm=norm,
            seed=seed,
        )
    )


@pytest.mark.parametrize("cache", [torch.float32, E4M3])
def test_only_the_slots_named_are_written_and_padding_has_none(cache):
    _, *caches = check(arguments(slots=(-1, 0, -1, PLACES - 1, BLOCK_SIZE), cache=cache))
    for stored in caches:
        written = ~stored.float().view(PLACES, -1).isnan()
        assert written.all(1).nonzero().flatten().tolist() == [0, BLOCK_SIZE, PLACES - 1]
        assert written.any(1).sum() == 3


@pytest.mark.parametrize("norm", [False, True])
def test_queries_alone_read_a_cache_that_stays_as_it_is(norm):
    given_arguments = arguments(slots=(1, 2, 3), norm=norm)
    given_arguments[0] = given_arguments[0][:, : 4 * 8].contiguous()
    given_arguments[5] = None
    _, *caches = check(given_arguments)
    assert all(cache.isnan().all() for cache in caches)


@pytest.mark.parametrize("keys_too", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_values_are_made_of_the_last_columns(normed, keys_too):
    product = torch.randn((3, 5 * 8), generator=torch.Generator().manual_seed(1))
    given_arguments = product, 16, 8, torch.ones(8) if normed else None, 1e-6
    made = with_values(*given_arguments, keys_too=keys_too)
    close(made, with_values_reference(*given_arguments, keys_too=keys_too))
    assert made.shape == (3, 40 + 16 * keys_too)


def test_an_8_bit_cache_saturates_and_scales_each_head():
    given_arguments = arguments(half=0, group=1, slots=(6,), cache=E4M3)
    qkv = given_arguments[0].view(6, 8)
    qkv[2:4, :3] = torch.tensor([[0.5, -3.0, 1e6], [0.5, -3.0, -1e6]])
    qkv[4:6, :2] = torch.tensor([7.0, 9.0])
    given_arguments[9:] = torch.tensor([0.25, 0.5]), torch.tensor([1.0, 2.0])
    _, keys, values = check(given_arguments)
    assert keys.float().view(PLACES, 2, 8)[6, :, :3].tolist() == [[2.0, -12.0, 448.0], [1.0, -6.0, -448.0]]
    assert values.float().view(PLACES, 2, 8)[6, :, :2].tolist() == [[7.0, 9.0], [3.5, 4.5]]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("cache", [torch.float32, E4M3])
def test_nan_stays_in_its_head(norm, cache):
    """Heads of one token: four queries, two keys, two values. One of each kind is spoilt, in one token of three."""
    given_arguments = arguments(slots=(1, 2, 3), norm=norm, cache=cache)
    for head in (2, 4, 7):
        given_arguments[0].view(3, 8, 8)[1, head, 3] = torch.nan
    query, keys, values = check(given_arguments)
    assert {tuple(place) for place in query.isnan().nonzero()[:, :3].tolist()} == {(1, 1, 0)}
    written = [cache.float().view(PLACES, 2, 8)[1:4].isnan().nonzero()[:, :2].tolist() for cache in (keys, values)]
    assert [{tuple(place) for place in places} for places in written] == [{(1, 0)}, {(1, 1)}]
